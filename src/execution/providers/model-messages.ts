/** Why a call failed, as far as another attempt may succeed. */
export const FAILURE_CLASSES = ['provider_error', 'timeout', 'rate_limited'] as const

/** A stored message of a turn. `args` and `result` belong to the tool and are never renamed. */
export type ModelMessage =
  | { role: 'user'; content: string | (TextPart | FilePart | AttachedFile)[] }
  | { role: 'assistant'; content: string | (TextPart | ToolCallPart)[] }
  | { role: 'tool'; content: ToolResultPart[] }

/** The text of a message: its text parts, apart by a blank line. */
export const messageText = ({ content }: Exclude<ModelMessage, { role: 'tool' }>): string =>
  typeof content === 'string' ? content : content.flatMap(part => (part.type === 'text' ? part.text : [])).join('\n\n')

export type TextPart = { type: 'text'; text: string }
/** A file of the project, by its id alone: its bytes are read when a model is asked. */
export type FilePart = { type: 'file'; file_id: string }
/** A file as a model gets it, in base64: the SDK would make that of bytes in several copies. Stored only where it is no file of the project. */
export type AttachedFile = { type: 'attachment'; filename: string; media_type: string; data_base64: string }
export type ToolCallPart = { type: 'tool_call'; tool_call_id: string; tool_name: string; args: unknown }
export type ToolResultPart = {
  type: 'tool_result'
  tool_call_id: string
  tool_name: string
  result: unknown
  error: { code: string; message: string; meta?: Record<string, unknown> } | null
}

/** A message as a model is asked with it. */
export type PromptMessage =
  | Exclude<ModelMessage, { role: 'user' }>
  | { role: 'user'; content: string | (TextPart | AttachedFile)[] }

export type ModelRequest = {
  system: string | null
  messages: PromptMessage[]
  /** 0 to 2; null is not sent. */
  temperature: number | null
  tools: { name: string; description: string; parameters: object }[]
  tool_choice: 'auto' | 'required' | 'none' | { type: 'tool'; tool_name: string } | null
  /** JSON Schema the final text must satisfy; the caller checks it. */
  output_schema: object | null
  /** Marks the system text, and with it the tool definitions, as a cached prefix. */
  prompt_caching: boolean
  max_output_tokens?: number | null
  top_p?: number | null
  seed?: number | null
  /** Texts at which the answer ends. */
  stop?: string[] | null
  /** Per provider type, passed through: `{ anthropic: {...} }`. */
  provider_options?: Record<string, unknown> | null
  /** Longest time of one attempt; default MODEL_CALL_TIMEOUT_MS. */
  timeout_ms?: number
  signal: AbortSignal
  /** Given: the answer is streamed and every piece of its text is handed over as it comes. */
  onDelta?: (text: string) => void
}

/** Tokens of one call. `output_tokens` includes `reasoning_tokens`; the input counts do not overlap. */
export type ModelUsage = {
  input_tokens: number
  cached_tokens: number
  cache_write_tokens: number
  output_tokens: number
  reasoning_tokens: number
}

export type ModelAnswer = {
  text: string
  /** `args_error` says why `args` could not be read; they are the raw text then. */
  tool_calls: { id: string; tool_name: string; args: unknown; args_error?: string }[]
  finish_reason: 'stop' | 'length' | 'content-filter' | 'tool-calls' | 'other'
  /** Null when the vendor reported none. */
  usage: ModelUsage | null
  /** The model that was asked for. */
  model: string
  ai_provider_id: string
}
