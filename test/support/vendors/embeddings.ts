import { countTokens } from 'gpt-tokenizer/encoding/cl100k_base'
import { embedText, toBase64 } from '#local/double/embeddings.ts'
import { type Call, first, type Refusal, type Rule, refusalsOf } from './rules.ts'
import type { VendorError } from './simulator.ts'

const MAX_INPUTS = 2048
const MAX_TOKENS = 8192
const MAX_TOKENS_OF_ALL = 300_000

const inputs = ({ body }: Call): string[] => (Array.isArray(body.input) ? body.input : [body.input]).map(String)

export const embeddingRules: readonly Rule[] = [
  {
    name: 'empty input',
    source: '?',
    date: '2026-11',
    message: "'$.input' is invalid. Please check the API reference: https://platform.openai.com/docs/api-reference.",
    breach: call => (inputs(call).length === 0 || inputs(call).includes('') ? {} : null),
  },
  {
    name: 'number of inputs',
    source: '1',
    date: '2025-06',
    message: `Invalid 'input': array too long. Expected an array with maximum length ${MAX_INPUTS}, but got an array with length {n} instead.`,
    error: { code: 'array_above_max_length', param: 'input' },
    breach: call => (inputs(call).length > MAX_INPUTS ? { n: inputs(call).length } : null),
  },
  {
    name: 'tokens of an input',
    source: 'S',
    date: '2024-09',
    message: `This model's maximum context length is ${MAX_TOKENS} tokens, however you requested {n} tokens ({n} in your prompt; 0 for the completion). Please reduce your prompt; or completion length.`,
    breach: first(function* (call) {
      for (const input of inputs(call)) {
        const n = countTokens(input)
        if (n > MAX_TOKENS) yield { n }
      }
    }),
  },
  {
    name: 'tokens of all inputs',
    source: 'S',
    date: '2025-09',
    message: `Requested {n} tokens, max ${MAX_TOKENS_OF_ALL} tokens per request`,
    error: { type: 'max_tokens_per_request', code: 'max_tokens_per_request' },
    breach(call) {
      const n = inputs(call).reduce((sum, input) => sum + countTokens(input), 0)
      return n > MAX_TOKENS_OF_ALL ? { n } : null
    },
  },
]

/** Answers a request of the Embeddings API of OpenAI, whose limits are counted with the tokenizer of its models. */
export function embed(call: Call): { refusals: Refusal[]; answer: VendorError } {
  const refusals = refusalsOf(embeddingRules, call)
  const refused = refusals.find(({ source }) => source !== '?')
  if (refused) {
    const { type = 'invalid_request_error', code = null, param = null } = refused.error
    return { refusals, answer: { status: 400, body: { error: { message: refused.message, type, param, code } } } }
  }
  const { dimensions = 1536, encoding_format, model } = call.body
  const data = inputs(call).map((input, index) => {
    const vector = embedText(input, dimensions)
    return { object: 'embedding', index, embedding: encoding_format === 'base64' ? toBase64(vector) : vector }
  })
  const prompt_tokens = inputs(call).reduce((sum, input) => sum + countTokens(input), 0)
  return {
    refusals,
    answer: {
      status: 200,
      body: { object: 'list', data, model, usage: { prompt_tokens, total_tokens: prompt_tokens } },
    },
  }
}
