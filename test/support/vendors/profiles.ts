import type { ProviderType } from '#execution/providers/model.ts'
import type { Reply } from './plan.ts'

/** A kind of provider as an operator makes it, with its vendor's simulator in place of the vendor. */
export type Profile = {
  name: string
  provider: ProviderType
  model: string
  /** Path of the simulator; null for types whose host cannot be set (see `processSettings`). */
  path: string | null
  config?: Record<string, unknown>
  /** Options of a call that make the model reason and show it, with the model that takes them. */
  thinking?: { model?: string; options?: Record<string, unknown> }
  /** Whether the vendor refuses the calls of a model whose reasoning does not come back with them. */
  demandsReasoning?: true
  /** Whether requests mark what the vendor caches. */
  marksCache?: true
  /** The answer to a call of the model that the vendor could not read. */
  malformed?: Reply
  /** Finish reason of an answer that the vendor continues with the next call. */
  pause?: string
  /** How the vendor spells an answer that was cut and a refused or filtered. */
  finish: { cut: string; refused: string }
}

const CHAT = { cut: 'length', refused: 'content_filter' }
const RESPONSES = { cut: 'max_output_tokens', refused: 'content_filter' }
const GEMINI = { cut: 'MAX_TOKENS', refused: 'SAFETY' }

const custom = (name: string, model: string, more: Partial<Profile> = {}): Profile => ({
  name: `custom ${name}`,
  provider: 'custom',
  model,
  path: `/custom/${name}/v1`,
  config: { dialect: name },
  finish: CHAT,
  ...more,
})

/** All provider types, and the dialects of the chat format that a custom provider may meet. */
export const profiles: readonly Profile[] = [
  {
    name: 'openai responses',
    provider: 'openai',
    model: 'gpt-5-mini',
    path: '/openai/v1',
    config: { api: 'responses' },
    thinking: { options: { reasoningSummary: 'auto' } },
    finish: RESPONSES,
  },
  {
    name: 'openai chat',
    provider: 'openai',
    model: 'gpt-5-mini',
    path: '/openai/v1',
    config: { api: 'chat' },
    finish: CHAT,
  },
  { name: 'azure', provider: 'azure', model: 'prod-gpt-5-mini', path: '/azure/openai/v1', finish: RESPONSES },
  {
    name: 'azure chat',
    provider: 'azure',
    model: 'prod-gpt-5-mini',
    path: '/azure/openai/v1',
    config: { api: 'chat' },
    finish: CHAT,
  },
  {
    name: 'anthropic',
    provider: 'anthropic',
    model: 'claude-sonnet-4-6',
    path: '/anthropic/v1',
    thinking: {
      model: 'claude-sonnet-4-5',
      options: { thinking: { type: 'enabled', budgetTokens: 2048 } },
    },
    demandsReasoning: true,
    marksCache: true,
    pause: 'pause_turn',
    finish: { cut: 'max_tokens', refused: 'refusal' },
  },
  {
    name: 'google',
    provider: 'google',
    model: 'gemini-3-pro',
    path: '/google/v1beta',
    thinking: { options: { thinkingConfig: { includeThoughts: true } } },
    malformed: { finish: 'MALFORMED_FUNCTION_CALL' },
    finish: GEMINI,
  },
  {
    name: 'vertex',
    provider: 'vertex',
    model: 'gemini-3-pro',
    path: null,
    thinking: { options: { thinkingConfig: { includeThoughts: true } } },
    malformed: { finish: 'MALFORMED_FUNCTION_CALL' },
    finish: GEMINI,
  },
  {
    name: 'bedrock claude',
    provider: 'bedrock',
    model: 'us.anthropic.claude-sonnet-4-6',
    path: null,
    config: { region: 'us-east-1' },
    thinking: {
      model: 'us.anthropic.claude-sonnet-4-5-20250929-v1:0',
      options: { reasoningConfig: { type: 'enabled', budgetTokens: 2048 } },
    },
    demandsReasoning: true,
    marksCache: true,
    finish: { cut: 'max_tokens', refused: 'content_filtered' },
  },
  {
    name: 'bedrock other',
    provider: 'bedrock',
    model: 'amazon.nova-pro-v1:0',
    path: null,
    config: { region: 'us-east-1' },
    finish: { cut: 'max_tokens', refused: 'guardrail_intervened' },
  },
  { name: 'xai', provider: 'xai', model: 'grok-4', path: '/xai/v1', finish: RESPONSES },
  {
    name: 'groq',
    provider: 'groq',
    model: 'openai/gpt-oss-120b',
    path: '/groq/v1',
    malformed: {
      error: {
        status: 400,
        message: "Failed to call a function. Please adjust your prompt. See 'failed_generation' for more details.",
        code: 'tool_use_failed',
      },
    },
    finish: CHAT,
  },
  { name: 'ollama', provider: 'ollama', model: 'qwen3:8b', path: '/ollama', finish: CHAT },
  { name: 'gateway', provider: 'gateway', model: 'openai/gpt-5-mini', path: '/openai/v1', finish: CHAT },
  custom('openai', 'prod-gpt-5-mini'),
  custom('mistral', 'mistral-large-latest'),
  custom('deepseek', 'deepseek-reasoner', { thinking: {}, demandsReasoning: true }),
  custom('kimi', 'kimi-k2.6', { thinking: {}, demandsReasoning: true }),
  custom('openrouter', 'anthropic/claude-sonnet-4.6'),
  custom('litellm', 'gpt-5-mini'),
  custom('vllm', 'mistralai/Devstral-Small-2-24B-Instruct-2512'),
  custom('llamacpp', 'qwen3-8b-q4_k_m'),
  custom('lmstudio', 'qwen3-8b'),
  custom('ollama', 'qwen3:8b'),
]

/** Returns the body of a provider of a profile. */
export const providerFields = ({ provider, model, path, config }: Profile, url: string) => ({
  name: 'simulated',
  provider,
  default_model: model,
  ...(path !== null && { base_url: `${url}${path}` }),
  ...(config && { config }),
})

/** Returns an API key that every type takes, which is also the lane of its calls. */
export const laneOf = ({ name }: Profile): string => `ABSK-${name.replaceAll(' ', '-')}`

/** Environment and flags of a process whose Bedrock and Vertex are the simulators. */
export const processSettings = (url: string) => ({
  env: {
    AWS_ENDPOINT_URL_BEDROCK: url,
    AWS_ENDPOINT_URL_BEDROCK_RUNTIME: url,
    VERTEX_SIMULATOR_URL: url,
  },
  flags: ['--import', './test/support/vendors/vertex-host.ts'],
})
