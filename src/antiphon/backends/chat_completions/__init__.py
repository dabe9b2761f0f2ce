"""The Chat Completions dialect: Ollama, llama.cpp, vLLM, LM Studio, OpenAI and their relatives."""

from antiphon.backends.chat_completions.backend import ChatCompletionsBackend

__all__ = ["ChatCompletionsBackend"]
