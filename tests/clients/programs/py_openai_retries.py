"""openai-python repeats what failed, after the time that the server names."""

import os
import unittest

import openai
from openai import OpenAI

URL = os.environ["SERVER_URL"]


class TestRetries(unittest.TestCase):
    """The model server refuses the first request of each kind."""

    def test_retry_after_is_honoured(self) -> None:
        with (
            OpenAI(base_url=URL, api_key="none", max_retries=1, timeout=30) as client,
            self.assertLogs("openai", "INFO") as logs,
        ):
            made = client.responses.create(model="fake-model", input="wait a second")
        self.assertEqual(made.output_text, "Twice asked.")
        retries = [line for line in logs.output if "Retrying request" in line]
        self.assertEqual(len(retries), 1)
        self.assertIn("in 1.000000 seconds", retries[0])

    def test_without_retries_the_error_has_the_time(self) -> None:
        with OpenAI(base_url=URL, api_key="none", max_retries=0, timeout=30) as client:
            with self.assertRaises(openai.RateLimitError) as caught:
                client.responses.create(model="fake-model", input="always busy")
            self.assertEqual(caught.exception.response.headers["retry-after"], "1")


if __name__ == "__main__":
    unittest.main()
