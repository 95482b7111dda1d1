import type { TokenCounts } from '#control/usage/meter.ts'
import type { ModelInput } from './model.ts'
import type { VendorTools } from './options/vendor-tool-settings.ts'

/** Failure classes, by what the vendor said. The first three may pass by themselves. */
export const FAILURE_CLASSES = [
  'provider_error',
  'timeout',
  'rate_limited',
  'auth',
  'credit',
  'not_found',
  'context_length',
  'refusal',
] as const

/** Stored message of a turn. `args` and `result` belong to the tool; their keys are never renamed. */
export type ModelMessage =
  | { role: 'user'; content: string | (TextPart | FilePart | AttachedFile)[] }
  | {
      role: 'assistant'
      content: string | (TextPart | ToolCallPart)[]
      vendor?: VendorStep
      /** Reasoning in the history of a client, sent to vendors that require some. Not part of the record of a turn. */
      reasoning?: string
    }
  | { role: 'tool'; content: ToolResultPart[] }

/** Returns the text parts of a message, separated by a blank line. */
export const messageText = ({ content }: Exclude<ModelMessage, { role: 'tool' }>): string =>
  typeof content === 'string' ? content : content.flatMap(part => (part.type === 'text' ? part.text : [])).join('\n\n')

export type TextPart = { type: 'text'; text: string }
/** File of the project by id; its bytes are read when a model is called. */
export type FilePart = { type: 'file'; file_id: string; media?: MessageMedia }
/**
 * File of a conversation message, or of a client's request. Unlike other files, it may be sent as text. `message_id` is null
 * outside conversations.
 */
export type MessageMedia = { message_id: string | null; alt: string | null; description: string | null }
/**
 * File content as a model receives it. Base64, because the SDK would make several copies when encoding bytes. Stored
 * only if it is not a file of the project.
 */
export type AttachedFile = {
  type: 'attachment'
  filename: string
  media_type: string
  data_base64: string
  media?: MessageMedia
  fallback?: MediaFallback
}
/** Text for a model that does not take the input, in place of a file. Never stored. */
export type MediaFallback = { input: ModelInput; text: () => Promise<string> }
/**
 * A message as its model gave it, in its order, with the parts that the vendor requires back: reasoning with its signatures, marks of
 * texts and calls. Sent to the model that made it, in place of the content.
 */
export type VendorStep = {
  ai_provider_id: string
  model: string
  parts: VendorPart[]
  /** Set on the last message of a request: the vendor paused there, and its answer continues the message. */
  paused?: true
}
export type VendorPart = { metadata?: Record<string, Record<string, unknown>> } & (
  | { type: 'text'; text: string }
  | { type: 'reasoning'; text: string }
  /** `position` of the call among the calls of the message. */
  | { type: 'tool_call'; position: number }
  /** A call that the vendor made itself, and its result. */
  | { type: 'vendor_call'; id: string; name: string; input: unknown }
  | { type: 'vendor_result'; id: string; name: string; result: unknown; is_error: boolean }
)
export type ToolCallPart = { type: 'tool_call'; tool_call_id: string; tool_name: string; args: unknown }
export type ToolResultPart = {
  type: 'tool_result'
  tool_call_id: string
  tool_name: string
  result: unknown
  error: { code: string; message: string; meta?: Record<string, unknown> } | null
}

/** Message of a model request. */
export type PromptMessage =
  | Exclude<ModelMessage, { role: 'user' }>
  | {
      role: 'user'
      content: string | (TextPart | AttachedFile)[]
      /** Whether it changes with each turn, so that prefixes with it are not cached for later turns. */
      changes?: true
    }

/** Choice among some of the tools: the others are not called. */
export type AllowedTools = { type: 'allowed_tools'; tool_names: string[]; mode?: 'auto' | 'required' }

export type ModelRequest = {
  system: string | null
  messages: PromptMessage[]
  /** 0 to 2; omitted if null. */
  temperature: number | null
  /** Calls of a strict tool are constrained to its schema, where vendor and schema allow it. */
  tools: { name: string; description: string; parameters: object; strict?: boolean }[]
  tool_choice: 'auto' | 'required' | 'none' | { type: 'tool'; tool_name: string } | AllowedTools | null
  /** JSON Schema of the final text, validated by the caller. */
  output_schema: object | null
  /** Whether prefixes are marked for the vendor's cache; null: where it charges less for them. */
  prompt_caching: boolean | null
  /** How long prefixes are cached; default 5 minutes. */
  prompt_cache_ttl?: '5m' | '1h'
  max_output_tokens?: number | null
  top_p?: number | null
  seed?: number | null
  /** Stop sequences. */
  stop?: string[] | null
  /** Settings that only some vendors support; dropped for others. */
  vendor_settings?: VendorSettings
  /** Whether the answer must be a JSON object, without a schema. */
  json?: boolean
  /** Whether the vendor may store the request and its answer, where it stores any; its default if omitted. */
  store?: boolean
  /** Tools that the vendor runs itself. */
  vendor_tools?: VendorTools | null
  /** Options by provider type, passed through: `{ anthropic: {...} }`. */
  provider_options?: Record<string, unknown> | null
  /** Timeout of one attempt; default MODEL_CALL_TIMEOUT_MS. */
  timeout_ms?: number
  /** Inputs that the model takes; null or absent if unknown. */
  inputs?: ReadonlySet<ModelInput> | null
  signal: AbortSignal
  /** Effort of the reasoning; the model's default if omitted. */
  reasoning?: 'none' | 'low'
  /** Whether the answer is requested as a stream; default true. */
  stream?: boolean
  /** If set, each text chunk is passed on arrival. */
  onDelta?: (text: string) => void
  /** Receives chunks of reasoning. */
  onReasoning?: (text: string) => void
  /** Receives the tokens of an answer that is not returned, because its call is repeated or fails. */
  onUnused?: (answer: UnusedAnswer) => void
}

/** Tokens of an answer that the caller did not get and that may be billed. */
export type UnusedAnswer = Pick<ModelAnswer, 'model' | 'ai_provider_id' | 'usage' | 'served_model' | 'service_tier'>

/** Settings by their names in the OpenAI API. */
export type VendorSettings = {
  presence_penalty?: number
  frequency_penalty?: number
  logit_bias?: Record<string, number>
  logprobs?: boolean
  top_logprobs?: number
  reasoning_effort?: string
  verbosity?: string
  service_tier?: string
  prompt_cache_key?: string
  parallel_tool_calls?: boolean
  /** In place of `max_output_tokens`, for models that refuse its older name. */
  max_completion_tokens?: number
}

/** Tokens of one call. `output_tokens` includes `reasoning_tokens`; the input counts do not overlap. */
export type ModelUsage = TokenCounts

/** A change of a request for its vendor, or the vendor's refusal to answer it. */
export type VendorNote =
  | { kind: 'tool_left_out' | 'tool_renamed'; tool_name: string; message: string }
  | { kind: 'setting_left_out' | 'setting_changed'; setting: string; message: string }
  | { kind: 'media_changed' | 'media_left_out'; message: string }
  | { kind: 'warning'; message: string }
  | { kind: 'refused'; category: string | null; message: string }

/**
 * Whether the vendor refused to answer. It refuses later requests too while these contain the refused answer and the
 * messages that led to it.
 */
export const isRefused = ({ notes }: { notes?: readonly VendorNote[] | null }): boolean =>
  notes?.some(({ kind }) => kind === 'refused') === true

/** A web page that a part of a text cites; positions are in UTF-16 code units. */
export type Annotation = {
  type: 'url_citation'
  url: string
  title: string | null
  cited_text: string | null
  start_index: number
  end_index: number
}

/** A token of an answer with the logarithm of its probability, and the most likely tokens at its place. */
export type TokenLogprob = Probable & { top_logprobs: Probable[] }
type Probable = { token: string; logprob: number; bytes: number[] | null }

export type ModelAnswer = {
  text: string
  /** Text of the reasoning, if the vendor gives any. */
  reasoning?: string
  /**
   * The answer in its order: if it has calls of the vendor, or if the vendor requires more than texts and calls back with its
   * calls.
   */
  vendor_parts?: VendorPart[]
  /** Whether the vendor paused the answer, and continues it in a next call. */
  paused?: true
  /** `args_error` is set if `args` could not be parsed; `args` is the raw text then. */
  tool_calls: { id: string; tool_name: string; args: unknown; args_error?: string }[]
  /** Finish reason of an empty answer in the vendor's own words. */
  vendor_reason?: string
  finish_reason: 'stop' | 'length' | 'content-filter' | 'tool-calls' | 'other'
  /** Null if the vendor reported none. */
  usage: ModelUsage | null
  /** Requested model. */
  model: string
  /** Model and service tier that the vendor names; absent if it names none. */
  served_model?: string
  service_tier?: string
  ai_provider_id: string
  /** Pages that the text cites; absent without any. */
  annotations?: Annotation[]
  /** If requested and given. */
  logprobs?: TokenLogprob[]
  /** Absent without any. */
  notes?: VendorNote[]
}
