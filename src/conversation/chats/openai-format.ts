import { z } from 'zod'
import { RecordedFailure } from '../../core/api/errors.ts'
import { type EventStream, streamEvent } from '../../core/api/streams.ts'
import { Part, textField } from '../../execution/generations/request/generate-request.ts'
import type { ModelAnswer } from '../../execution/providers/model-messages.ts'

const id = z.string().min(1).max(255)
const role = <const T extends string>(value: T) => z.literal(value).describe('Whose message it is')

const content = textField.describe('What it says')
const document_id = id.describe('Document whose text it says, in place of content')

const ToolCall = z.strictObject({
  id: id.describe('Id of the call'),
  type: z.literal('function').describe('What is called'),
  function: z
    .strictObject({
      name: id.describe('Name of the tool'),
      arguments: z.string().max(262_144).describe('The arguments as JSON text'),
      parsed_arguments: z.unknown().optional().describe('What a client made of the arguments: accepted and not used'),
    })
    .describe('The tool and its arguments'),
})

const Message = z.discriminatedUnion('role', [
  z.strictObject({
    role: role('user'),
    content: z
      .union([textField, z.array(Part).min(1).max(32)])
      .optional()
      .describe('A text, or parts: texts, documents and files (images, sounds and PDF)'),
    document_id: document_id.optional(),
    name: id.optional().describe('Accepted and not used'),
  }),
  z.strictObject({
    role: role('assistant'),
    content: content.nullish(),
    document_id: document_id.optional(),
    tool_calls: z.array(ToolCall).min(1).max(128).optional().describe('Calls that it made'),
    refusal: z.string().nullish().describe('Accepted as clients send an answer back'),
    parsed: z.unknown().optional().describe('What a client made of an answer: accepted and not used'),
  }),
  z.strictObject({
    role: role('tool'),
    content: z.string().max(262_144).describe('What the call gave'),
    tool_call_id: id.describe('The call, of an earlier message of the assistant'),
  }),
  // Those of the system have a code of their own, so they are let through to be named.
  z.looseObject({ role: role('system') }),
  z.looseObject({ role: role('developer') }),
])
export type WireMessage = z.output<typeof Message>

const Tool = z.strictObject({
  type: z.literal('function').describe('What it is'),
  function: z
    .strictObject({
      name: z
        .string()
        .regex(/^[a-zA-Z0-9_-]{1,64}$/, 'must be 1 to 64 letters, digits, _ or -')
        .describe('Name that the model calls it by'),
      description: z.string().max(4096).optional().describe('What it does'),
      parameters: z.record(z.string(), z.unknown()).optional().describe('JSON Schema of its arguments'),
      strict: z.boolean().nullish().describe('Accepted and not used'),
    })
    .describe('A tool of the client: the answer names its calls, the client makes them'),
})

const ToolChoice = z.union([
  z.enum(['none', 'auto', 'required']),
  z.strictObject({
    type: z.literal('function').describe('What is forced'),
    function: z.strictObject({ name: id.describe('Name of the tool') }).describe('The tool'),
  }),
])

const ResponseFormat = z.discriminatedUnion('type', [
  z.strictObject({ type: z.literal('text').describe('Any text') }),
  z.strictObject({
    type: z.literal('json_schema').describe('JSON that satisfies a schema'),
    json_schema: z
      .strictObject({
        name: id.optional().describe('Accepted and not used'),
        description: z.string().max(4096).optional().describe('Accepted and not used'),
        schema: z.record(z.string(), z.unknown()).describe('JSON Schema, draft-07 or 2020-12'),
        strict: z.boolean().nullish().describe('Accepted and not used: the answer is always checked'),
      })
      .describe('The schema'),
  }),
])

const tokens = z.int().min(1).max(2_147_483_647)

export const CompletionInput = z
  .strictObject({
    chat_id: id.optional().describe('Chat whose provider, model and instructions serve it'),
    ai_provider_id: id.optional().describe('AI provider that serves it, without a chat'),
    model: id
      .optional()
      .describe(
        'Model in place of that of the chat or the default of the provider. With neither chat_id nor ai_provider_id it names the target: the id of a chat, or `<ai_provider_id>/<model>`',
      ),
    messages: z.array(Message).min(1).max(500).describe('The whole history, oldest first'),
    instructions: z.string().max(65_536).nullish().describe('System text; replaces that of the chat for this call'),
    stream: z.boolean().nullish().describe('Answer with pieces as they come'),
    stream_options: z
      .strictObject({ include_usage: z.boolean().optional().describe('Adds a last piece with the usage') })
      .nullish()
      .describe('For streams'),
    temperature: z.number().min(0).max(2).nullish().describe('Sampling temperature'),
    top_p: z.number().min(0).max(1).nullish().describe('Nucleus sampling'),
    max_tokens: tokens.nullish().describe('Most tokens of the answer'),
    max_completion_tokens: tokens.nullish().describe('The same as max_tokens, before which it goes'),
    stop: z
      .union([z.string().min(1).max(1024), z.array(z.string().min(1).max(1024)).min(1).max(4)])
      .nullish()
      .describe('Texts at which the answer ends'),
    seed: z.int().nullish().describe('Seed for repeatable answers, where the vendor takes one'),
    tools: z.array(Tool).min(1).max(128).optional().describe('Tools of the client'),
    tool_choice: ToolChoice.optional().describe('What the model has to do with the tools; default `auto`'),
    parallel_tool_calls: z.boolean().optional().describe('Accepted and not used'),
    response_format: ResponseFormat.optional().describe('What the answer has to be; default text'),
    n: z.literal(1).nullish().describe('Answers: there is one'),
    user: z.string().max(255).optional().describe('Accepted and not used'),
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
  prompt_tokens: z.int().describe('Tokens read'),
  completion_tokens: z.int().describe('Tokens written'),
  total_tokens: z.int().describe('Tokens read and written'),
  prompt_tokens_details: z.object({ cached_tokens: z.int() }).describe('Tokens read, by kind'),
  completion_tokens_details: z.object({ reasoning_tokens: z.int() }).describe('Tokens written, by kind'),
})

export const ChatCompletion = z
  .object({
    id: z.string(),
    object: z.literal('chat.completion'),
    created: z.int().describe('Seconds since 1970'),
    model: z.string().describe('Model that answered'),
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
                    .describe('The call'),
                }),
              )
              .optional(),
          }),
          finish_reason: z.enum(['stop', 'length', 'content_filter', 'tool_calls']),
        }),
      )
      .describe('Answers; there is one'),
    usage: Usage.nullable().describe('null when the provider reported none'),
  })
  .meta({ id: 'ChatCompletion' })

const Piece = z
  .object({
    id: z.string().describe('Id of the completion'),
    object: z.literal('chat.completion.chunk').describe('What it is'),
    created: z.int().describe('Seconds since 1970'),
    model: z.string().describe('Model that answers'),
    choices: z
      .array(
        z.object({
          index: z.int().describe('Always 0'),
          delta: z
            .object({
              role: z.literal('assistant').optional().describe('With the first piece'),
              content: z.string().optional().describe('A piece of text'),
              tool_calls: z
                .array(
                  z.object({
                    index: z.int().describe('Position of the call'),
                    id: z.string().describe('Call, as the model named it'),
                    type: z.literal('function').describe('What it is'),
                    function: z
                      .object({
                        name: z.string().describe('Tool of the client'),
                        arguments: z.string().describe('Arguments as JSON text'),
                      })
                      .describe('What is called'),
                  }),
                )
                .optional()
                .describe('Calls of tools of the client'),
            })
            .describe('What the piece adds'),
          finish_reason: z
            .enum(['stop', 'length', 'content_filter', 'tool_calls'])
            .nullable()
            .describe('Why the answer ended; null before the last piece'),
        }),
      )
      .describe('One; none in the piece with the usage'),
    usage: Usage.nullish().describe('In the last piece, with include_usage'),
  })
  .meta({ id: 'ChatCompletionPiece' })

/** Lines without the name of an event have the one that readers give them, `message`. */
export const completionEvents: EventStream = {
  name: 'ChatCompletionEvent',
  events: [
    streamEvent(
      'ChatCompletionMessageEvent',
      'message',
      'A piece; `[DONE]` behind the last one, or the failure in its place',
      z.union([Piece, z.object({ error: RecordedFailure.describe('What failed') }), z.literal('[DONE]')]),
    ),
  ],
  last: ['message'],
  resume: null,
}

/** What a completion and each of its pieces begin with. */
export type CompletionHeader = { id: string; created: number }

const REASONS: Record<string, z.output<typeof ChatCompletion>['choices'][number]['finish_reason']> = {
  length: 'length',
  'content-filter': 'content_filter',
  'tool-calls': 'tool_calls',
}
const reasonOf = ({ finish_reason }: ModelAnswer) => REASONS[finish_reason] ?? 'stop'

const callsOf = ({ tool_calls }: ModelAnswer) =>
  tool_calls.map(({ id, tool_name, args }) => ({
    id,
    type: 'function' as const,
    function: { name: tool_name, arguments: typeof args === 'string' ? args : JSON.stringify(args ?? {}) },
  }))

function usageOf({ usage }: ModelAnswer): z.output<typeof Usage> | null {
  if (!usage) return null
  const prompt_tokens = usage.input_tokens + usage.cached_tokens + usage.cache_write_tokens
  return {
    prompt_tokens,
    completion_tokens: usage.output_tokens,
    total_tokens: prompt_tokens + usage.output_tokens,
    prompt_tokens_details: { cached_tokens: usage.cached_tokens },
    completion_tokens_details: { reasoning_tokens: usage.reasoning_tokens },
  }
}

/** An answer as a whole. */
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
    usage: usageOf(answer),
  }
}

const frame = (data: object): string => `data: ${JSON.stringify(data)}\n\n`

/** The messages of a stream: pieces of the text as they come, then the end. The first says whose they are. */
export function completionFrames({ id, created }: CompletionHeader, model: () => string) {
  let first = true
  const chunk = (choices: object[], more: object = {}) =>
    frame({ id, object: 'chat.completion.chunk', created, model: model(), choices, ...more })
  const piece = (delta: object, finish_reason: string | null = null) => {
    const begun = first ? { role: 'assistant', ...delta } : delta
    first = false
    return chunk([{ index: 0, delta: begun, finish_reason }])
  }
  return {
    text: (content: string) => piece({ content }),
    *end(answer: ModelAnswer, usage: boolean): Generator<string> {
      const tool_calls = callsOf(answer).map((call, index) => ({ index, ...call }))
      if (tool_calls.length > 0) yield piece({ tool_calls })
      yield piece({}, reasonOf(answer))
      if (usage) yield chunk([], { usage: usageOf(answer) })
      yield 'data: [DONE]\n\n'
    },
    failed: (error: object) => frame({ error }),
  }
}
