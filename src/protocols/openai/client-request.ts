import type { ModelMessage, ModelRequest, VendorSettings } from '#execution/providers/model-messages.ts'
import type { HostedTool } from './hosted-tools.ts'

/** A request of a client, of either format, in the terms of the platform. */
export type ClientChatRequest = {
  model: string
  /** System texts of the client. */
  instructions: string | null
  messages: ModelMessage[]
  tools: ModelRequest['tools']
  tool_choice: ModelRequest['tool_choice']
  /** Tools that the vendor runs itself. */
  hosted: HostedTool[]
  /** Names of the fields that define and choose tools, as far as the body has them. */
  tool_fields: string[]
  settings: Partial<Pick<ModelRequest, 'temperature' | 'top_p' | 'seed' | 'stop'>> & VendorSettings
  max_output_tokens: number | null
  format: OutputFormat
  stream: boolean
  /** Whether the vendor may store the answer; null if the body does not say. */
  store: boolean | null
  /** The end user as the body names it. */
  user: string | null
  /** The conversation as the body names it. */
  session_key: string | null
}

export type OutputFormat = { type: 'text' } | { type: 'json_object' } | { type: 'json_schema'; schema: object }

/** Returns the JSON Schema that an answer must satisfy; null for text. */
export const schemaOf = (format: OutputFormat): object | null =>
  format.type === 'json_schema' ? format.schema : format.type === 'json_object' ? { type: 'object' } : null
