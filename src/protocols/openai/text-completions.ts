import { z } from 'zod'
import { dataMessage } from '#core/api/event-stream.ts'
import { parse } from '#core/api/validate.ts'
import { type chatChunks, chatCompletion, finishReasonOf, shownUsage } from './chat-format.ts'
import { parseChatRequest } from './chat-request.ts'

/** Completions in the older form of the API: a prompt and a text. */

const text = z.string().max(262_144)
const TextRequest = z.looseObject({
  prompt: z.union([text, z.array(text).length(1, 'must have one prompt')]),
  messages: z.undefined('is not a field of this route').optional(),
})

/** Fields of the older form that nothing corresponds to. */
const UNSUPPORTED = ['suffix', 'echo', 'best_of', 'logprobs']

/** Returns a request for a completion. Unknown fields are ignored and named. @throws VALIDATION_FAILED */
export function parseTextRequest(body: unknown): ReturnType<typeof parseChatRequest> {
  const { prompt, ...fields } = parse(TextRequest, body ?? {})
  const unsupported = UNSUPPORTED.filter(name => fields[name] != null)
  for (const name of UNSUPPORTED) delete fields[name]
  const content = typeof prompt === 'string' ? prompt : prompt[0]
  const parsed = parseChatRequest({ ...fields, messages: [{ role: 'user', content }] })
  return { ...parsed, ignored: [...unsupported, ...parsed.ignored] }
}

const idOf = (id: string): string => id.replace(/^chatcmpl_/, 'cmpl_')

/** Returns an answer as a completion. */
export function textCompletion(...[head, answer, visible]: Parameters<typeof chatCompletion>) {
  const { choices: _, ...completion } = chatCompletion(head, answer, visible)
  return {
    ...completion,
    id: idOf(head.id),
    object: 'text_completion',
    choices: [{ index: 0, text: answer.text, logprobs: null, finish_reason: finishReasonOf(answer) }],
  }
}

/** Returns functions that format the chunks of a stream. */
export function textChunks(
  ...[head, firstModel, visible, options]: Parameters<typeof chatChunks>
): ReturnType<typeof chatChunks> {
  let model = firstModel
  const chunk = (choices: object[], more: object = {}) =>
    dataMessage({ id: idOf(head.id), object: 'text_completion', created: head.created, model, choices, ...more })
  const textChunk = (text: string, finish_reason: string | null = null) =>
    chunk([{ index: 0, text, logprobs: null, finish_reason }])
  return {
    version() {},
    text: delta => textChunk(delta),
    *end(answer) {
      model = answer.model
      yield textChunk('', finishReasonOf(answer))
      if (options.include_usage) yield chunk([], { usage: shownUsage(answer.usage, visible) })
      yield 'data: [DONE]\n\n'
    },
    failed(error) {
      const body = options.failed(error)
      return body && dataMessage(body)
    },
  }
}
