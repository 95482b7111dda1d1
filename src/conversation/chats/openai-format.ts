import { z } from 'zod'
import { dataMessage } from '#core/api/event-stream.ts'
import { type EventStream, streamEvent } from '#core/api/streams.ts'
import { RecordedFailure } from '#core/base/errors.ts'
import { Part, textField } from '#execution/generations/request/generate-request.ts'
import type { ModelAnswer, ModelUsage } from '#execution/providers/model-messages.ts'

const id = z.string().min(1).max(255)
const role = <const T extends string>(value: T) => z.literal(value).describe('Author of the message')

const content = textField.describe('Text of the message')
const document_id = id.describe('ID of a document whose text is the content. Cannot be combined with content.')

const ToolCall = z.strictObject({
  id: id.describe('ID of the call'),
  type: z.literal('function').describe('Type of the call'),
  function: z
    .strictObject({
      name: id.describe('Name of the tool'),
      arguments: z.string().max(262_144).describe('Arguments as JSON text'),
      parsed_arguments: z.unknown().optional().describe('Accepted and ignored'),
    })
    .describe('Tool and arguments'),
})

const Message = z.discriminatedUnion('role', [
  z.strictObject({
    role: role('user'),
    content: z
      .union([textField, z.array(Part).min(1).max(32)])
      .optional()
      .describe('Text, or a list of texts, documents and files (images, audio and PDF)'),
    document_id: document_id.optional(),
    name: id.optional().describe('Accepted and ignored'),
  }),
  z.strictObject({
    role: role('assistant'),
    content: content.nullish(),
    document_id: document_id.optional(),
    tool_calls: z.array(ToolCall).min(1).max(128).optional().describe('Tool calls of the assistant'),
    refusal: z.string().nullish().describe('Accepted and ignored'),
    parsed: z.unknown().optional().describe('Accepted and ignored'),
  }),
  z.strictObject({
    role: role('tool'),
    content: z.string().max(262_144).describe('Result of the call'),
    tool_call_id: id.describe('ID of a call in an earlier assistant message'),
  }),
  // Accepted here to be rejected with a specific code.
  z.looseObject({ role: role('system') }),
  z.looseObject({ role: role('developer') }),
])
export type WireMessage = z.output<typeof Message>

const Tool = z.strictObject({
  type: z.literal('function').describe('Type of the tool'),
  function: z
    .strictObject({
      name: z
        .string()
        .regex(/^[a-zA-Z0-9_-]{1,64}$/, 'must be 1 to 64 letters, digits, _ or -')
        .describe('Name that the model uses'),
      description: z.string().max(4096).optional().describe('Description for the model'),
      parameters: z.record(z.string(), z.unknown()).optional().describe('JSON Schema of the arguments'),
      strict: z
        .boolean()
        .nullish()
        .describe('Whether calls are constrained to the schema, if the vendor and the schema allow it'),
    })
    .describe('Tool of the client, which makes the calls in the response'),
})

const ToolChoice = z.union([
  z.enum(['none', 'auto', 'required']),
  z.strictObject({
    type: z.literal('function').describe('Type of the choice'),
    function: z.strictObject({ name: id.describe('Name of the tool') }).describe('Tool that the model must call'),
  }),
  z.strictObject({
    type: z.literal('allowed_tools').describe('Type of the choice'),
    allowed_tools: z
      .strictObject({
        mode: z.enum(['auto', 'required']).describe('Whether one of them must be called'),
        tools: z
          .array(
            z.strictObject({
              type: z.literal('function').describe('Type of the tool'),
              function: z.strictObject({ name: id.describe('Name of the tool') }).describe('Allowed tool'),
            }),
          )
          .min(1)
          .max(128)
          .describe('Tools that may be called'),
      })
      .describe('Choice among some of the tools'),
  }),
])

const ResponseFormat = z.discriminatedUnion('type', [
  z.strictObject({ type: z.literal('text').describe('Text') }),
  z.strictObject({
    type: z.literal('json_schema').describe('JSON that satisfies a schema'),
    json_schema: z
      .strictObject({
        name: id.optional().describe('Accepted and ignored'),
        description: z.string().max(4096).optional().describe('Accepted and ignored'),
        schema: z.record(z.string(), z.unknown()).describe('JSON Schema, draft-07 or 2020-12'),
        strict: z.boolean().nullish().describe('Accepted and ignored: the output is always validated'),
      })
      .describe('Schema of the output'),
  }),
])

const tokens = z.int().min(1).max(2_147_483_647)

export const CompletionInput = z
  .strictObject({
    chat_id: id.optional().describe('ID of the chat whose provider, model and instructions are used'),
    ai_provider_id: id.optional().describe('ID of the AI provider. Cannot be combined with chat_id.'),
    model: id
      .optional()
      .describe(
        'Model; overrides the model of the chat or the default of the provider. Without chat_id and ai_provider_id it is the target: the ID of a chat, or `<ai_provider_id>/<model>`.',
      ),
    messages: z.array(Message).min(1).max(500).describe('Conversation history, oldest first'),
    instructions: z.string().max(65_536).nullish().describe('System prompt; overrides the instructions of the chat'),
    stream: z.boolean().nullish().describe('Whether to stream the completion'),
    stream_options: z
      .strictObject({ include_usage: z.boolean().optional().describe('Whether to add a last chunk with the usage') })
      .nullish()
      .describe('Options of the stream'),
    temperature: z.number().min(0).max(2).nullish().describe('Sampling temperature'),
    top_p: z.number().min(0).max(1).nullish().describe('Nucleus sampling'),
    max_tokens: tokens.nullish().describe('Maximum number of output tokens'),
    max_completion_tokens: tokens.nullish().describe('Maximum number of output tokens; overrides max_tokens'),
    stop: z
      .union([z.string().min(1).max(1024), z.array(z.string().min(1).max(1024)).min(1).max(4)])
      .nullish()
      .describe('Texts at which the output ends'),
    seed: z.int().nullish().describe('Seed for reproducible output, if the provider supports it'),
    tools: z.array(Tool).min(1).max(128).optional().describe('Tools of the client'),
    tool_choice: ToolChoice.optional().describe('Tool choice of the model. Default `auto`.'),
    parallel_tool_calls: z.boolean().optional().describe('Accepted and ignored'),
    response_format: ResponseFormat.optional().describe('Format of the output. Default text.'),
    n: z.literal(1).nullish().describe('Number of choices, always 1'),
    user: z.string().max(255).optional().describe('Accepted and ignored'),
  })
  .meta({
    id: 'ChatCompletionInput',
    example: {
      chat_id: 'chat_01k5p3vd7r9hj2x8m4qcw6tz0e',
      messages: [{ role: 'user', content: 'How long may I return an order?' }],
    },
  })
export type CompletionBody = z.output<typeof CompletionInput>

const Usage = z.object({
  prompt_tokens: z.int().describe('Input tokens'),
  completion_tokens: z.int().describe('Output tokens'),
  total_tokens: z.int().describe('Input and output tokens'),
  prompt_tokens_details: z.object({ cached_tokens: z.int() }).describe('Input tokens by kind'),
  completion_tokens_details: z.object({ reasoning_tokens: z.int() }).describe('Output tokens by kind'),
})

export const ChatCompletion = z
  .object({
    id: z.string(),
    object: z.literal('chat.completion'),
    created: z.int().describe('Unix time in seconds'),
    model: z.string().describe('Model that was used'),
    choices: z
      .array(
        z.object({
          index: z.int(),
          message: z.object({
            role: z.literal('assistant'),
            content: z.string().nullable(),
            refusal: z.null().describe('Always null'),
            tool_calls: z
              .array(
                z.object({
                  id: z.string(),
                  type: z.literal('function'),
                  function: z
                    .object({ name: z.string(), arguments: z.string().describe('Arguments as JSON text') })
                    .describe('Function to call'),
                }),
              )
              .optional(),
          }),
          finish_reason: z.enum(['stop', 'length', 'content_filter', 'tool_calls']),
        }),
      )
      .describe('List with one entry'),
    usage: Usage.nullable().describe('Null if the provider reported no usage'),
  })
  .meta({ id: 'ChatCompletion' })

const Chunk = z
  .object({
    id: z.string().describe('ID of the completion'),
    object: z.literal('chat.completion.chunk').describe('Type of the object'),
    created: z.int().describe('Unix time in seconds'),
    model: z.string().describe('Model that is used'),
    choices: z
      .array(
        z.object({
          index: z.int().describe('Always 0'),
          delta: z
            .object({
              role: z.literal('assistant').optional().describe('In the first chunk'),
              content: z.string().optional().describe('Text to append'),
              tool_calls: z
                .array(
                  z.object({
                    index: z.int().describe('Position of the call'),
                    id: z.string().describe('ID of the call, from the model'),
                    type: z.literal('function').describe('Type of the call'),
                    function: z
                      .object({
                        name: z.string().describe('Name of the tool'),
                        arguments: z.string().describe('Arguments as JSON text'),
                      })
                      .describe('Tool and arguments'),
                  }),
                )
                .optional()
                .describe('Calls of client tools'),
            })
            .describe('Change of the message'),
          finish_reason: z
            .enum(['stop', 'length', 'content_filter', 'tool_calls'])
            .nullable()
            .describe('Finish reason. Null before the last chunk.'),
        }),
      )
      .describe('List with one entry; empty in the chunk with the usage'),
    usage: Usage.nullish().describe('In the last chunk, if include_usage is set'),
  })
  .meta({ id: 'ChatCompletionPiece' })

/** Lines without an event name have the default event `message`. */
export const completionEvents: EventStream = {
  name: 'ChatCompletionEvent',
  events: [
    streamEvent(
      'ChatCompletionMessageEvent',
      'message',
      'Chunk; `[DONE]` after the last one, or a failure instead of it',
      z.union([Chunk, z.object({ error: RecordedFailure.describe('Failure') }), z.literal('[DONE]')]),
    ),
  ],
  last: ['message'],
  resume: null,
}

/** Id and creation time of a completion and its chunks. */
export type CompletionHeader = { id: string; created: number }

const REASONS: Record<string, z.output<typeof ChatCompletion>['choices'][number]['finish_reason']> = {
  length: 'length',
  'content-filter': 'content_filter',
  'tool-calls': 'tool_calls',
}
const reasonOf = ({ finish_reason }: ModelAnswer) => REASONS[finish_reason] ?? 'stop'

export const argumentsOf = (args: unknown): string => (typeof args === 'string' ? args : JSON.stringify(args ?? {}))

/** Returns tool calls in the format of completions. */
export const callsOf = ({ tool_calls }: Pick<ModelAnswer, 'tool_calls'>) =>
  tool_calls.map(({ id, tool_name, args }) => ({
    id,
    type: 'function' as const,
    function: { name: tool_name, arguments: argumentsOf(args) },
  }))

/** Returns usage in the format of completions. */
export function usageOf(usage: ModelUsage): z.output<typeof Usage> {
  const prompt_tokens = usage.input_tokens + usage.cached_tokens + usage.cache_write_tokens
  return {
    prompt_tokens,
    completion_tokens: usage.output_tokens,
    total_tokens: prompt_tokens + usage.output_tokens,
    prompt_tokens_details: { cached_tokens: usage.cached_tokens },
    completion_tokens_details: { reasoning_tokens: usage.reasoning_tokens },
  }
}

/** Returns an answer as a completion. */
export function completionOf({ id, created }: CompletionHeader, answer: ModelAnswer): z.output<typeof ChatCompletion> {
  const tool_calls = callsOf(answer)
  const called = tool_calls.length > 0
  return {
    id,
    object: 'chat.completion',
    created,
    model: answer.model,
    choices: [
      {
        index: 0,
        message: {
          role: 'assistant',
          content: called && answer.text === '' ? null : answer.text,
          refusal: null,
          ...(called && { tool_calls }),
        },
        finish_reason: reasonOf(answer),
      },
    ],
    usage: answer.usage && usageOf(answer.usage),
  }
}

/** Returns functions that format the messages of a stream. The first chunk has the role. */
export function completionFrames({ id, created }: CompletionHeader, firstModel: string, options: { usage: boolean }) {
  let model = firstModel
  let first = true
  const chunk = (choices: object[], more: object = {}) =>
    dataMessage({ id, object: 'chat.completion.chunk', created, model, choices, ...more })
  const deltaChunk = (delta: object, finish_reason: string | null = null) => {
    const fullDelta = first ? { role: 'assistant', ...delta } : delta
    first = false
    return chunk([{ index: 0, delta: fullDelta, finish_reason }])
  }
  return {
    text: (content: string) => deltaChunk({ content }),
    *end(answer: ModelAnswer): Generator<string> {
      model = answer.model
      const tool_calls = callsOf(answer).map((call, index) => ({ index, ...call }))
      if (tool_calls.length > 0) yield deltaChunk({ tool_calls })
      yield deltaChunk({}, reasonOf(answer))
      if (options.usage) yield chunk([], { usage: answer.usage && usageOf(answer.usage) })
      yield 'data: [DONE]\n\n'
    },
    failed: (error: object) => dataMessage({ error }),
  }
}
