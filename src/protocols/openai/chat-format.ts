import type { CompletionFrames } from '#conversation/chats/complete.ts'
import { callsOf, usageOf } from '#conversation/chats/openai-format.ts'
import { dataMessage } from '#core/api/event-stream.ts'
import type { StepLogprobs } from '#execution/generations/request/turn-result.ts'
import type { ModelAnswer, ModelUsage, TokenLogprob } from '#execution/providers/model-messages.ts'

/** Id, time and version of a completion and its chunks. */
export type ChatHeader = { id: string; created: number; system_fingerprint: string | null }

/** What a caller may see: end users see neither usage nor reasoning nor the version of the agent. */
export type Visibility = { usage: boolean; reasoning: boolean; version: boolean }

/** Returns the version of an agent as the fingerprint of a completion. */
export const fingerprintOf = (version: number | null, visible: Visibility): string | null =>
  visible.version && version !== null ? `v${version}` : null

/** The parts of an answer that its format needs. */
type ChatAnswer = Pick<
  ModelAnswer,
  'text' | 'reasoning' | 'tool_calls' | 'finish_reason' | 'usage' | 'model' | 'annotations'
> & {
  texts?: readonly string[]
  /** Of the tokens of the text; in a turn by step. */
  logprobs?: readonly (TokenLogprob | StepLogprobs)[]
}

/** Returns the probabilities of all tokens in the format of the API; null without any. */
function logprobsOf({ logprobs = [] }: ChatAnswer): { content: TokenLogprob[]; refusal: null } | null {
  const content = logprobs.flatMap(each => ('tokens' in each ? each.tokens : each))
  return content.length > 0 ? { content, refusal: null } : null
}

/** Tokens in a chunk. The probabilities of an answer follow its text. */
const LOGPROBS_PER_CHUNK = 100

function* logprobSlices(answer: ChatAnswer): Generator<{ content: TokenLogprob[]; refusal: null }> {
  const content = logprobsOf(answer)?.content ?? []
  for (let at = 0; at < content.length; at += LOGPROBS_PER_CHUNK)
    yield { content: content.slice(at, at + LOGPROBS_PER_CHUNK), refusal: null }
}

/** Returns the pages that an answer cites; positions are those in the whole text. */
function annotationFields({ annotations, text, texts }: ChatAnswer): { annotations?: object[] } {
  if (!annotations?.length) return {}
  const offset = texts ? text.length - (texts.at(-1) ?? '').length : 0
  return {
    annotations: annotations.map(({ type, url, title, start_index, end_index }) => ({
      type,
      url_citation: {
        url,
        title: title ?? url,
        start_index: start_index + offset,
        end_index: end_index + offset,
      },
    })),
  }
}

const REASONS: Record<string, string> = {
  length: 'length',
  'content-filter': 'content_filter',
}
export const finishReasonOf = ({ finish_reason, tool_calls }: ChatAnswer): string =>
  tool_calls.length > 0 ? 'tool_calls' : (REASONS[finish_reason] ?? 'stop')

const NO_USAGE: ModelUsage = {
  input_tokens: 0,
  cached_tokens: 0,
  cache_write_tokens: 0,
  output_tokens: 0,
  reasoning_tokens: 0,
}

/** Returns the usage; zeros without one, and for callers that may not see it. */
export const shownUsage = (usage: ModelUsage | null, visible: Visibility) =>
  usageOf((visible.usage && usage) || NO_USAGE)

/** Returns an answer as a completion. */
export function chatCompletion(head: ChatHeader, answer: ChatAnswer, visible: Visibility) {
  const tool_calls = callsOf(answer)
  const called = tool_calls.length > 0
  return {
    id: head.id,
    object: 'chat.completion',
    created: head.created,
    model: answer.model,
    system_fingerprint: head.system_fingerprint,
    choices: [
      {
        index: 0,
        message: {
          role: 'assistant',
          content: called && answer.text === '' ? null : answer.text,
          refusal: null,
          ...(visible.reasoning && answer.reasoning && { reasoning_content: answer.reasoning }),
          ...(called && { tool_calls }),
          ...annotationFields(answer),
        },
        logprobs: logprobsOf(answer),
        finish_reason: finishReasonOf(answer),
      },
    ],
    usage: shownUsage(answer.usage, visible),
  }
}

/**
 * Returns functions that format the chunks of a stream. The first chunk has the role.
 * @param options.failed formats an error; null leaves it to the status of the response
 */
export function chatChunks(
  head: ChatHeader,
  firstModel: string,
  visible: Visibility,
  options: { include_usage: boolean; failed(error: unknown): object | null },
): Omit<CompletionFrames, 'end'> & {
  version(version: number | null): void
  end(answer: ChatAnswer): Iterable<string>
} {
  let model = firstModel
  let { system_fingerprint } = head
  let first = true
  const chunk = (choices: object[], more: object = {}) =>
    dataMessage({
      id: head.id,
      object: 'chat.completion.chunk',
      created: head.created,
      model,
      system_fingerprint,
      choices,
      ...(options.include_usage && { usage: null }),
      ...more,
    })
  const deltaChunk = (delta: object, finish_reason: string | null = null, logprobs: object | null = null) => {
    const fullDelta = first ? { role: 'assistant', content: '', ...delta } : delta
    first = false
    return chunk([{ index: 0, delta: fullDelta, logprobs, finish_reason }])
  }
  return {
    version(version) {
      system_fingerprint = fingerprintOf(version, visible)
    },
    text: content => deltaChunk({ content }),
    ...(visible.reasoning && { reasoning: (text: string) => deltaChunk({ reasoning_content: text }) }),
    *end(answer) {
      model = answer.model
      const tool_calls = callsOf(answer).map((call, index) => ({ index, ...call }))
      for (const logprobs of logprobSlices(answer)) yield deltaChunk({}, null, logprobs)
      if (tool_calls.length > 0) yield deltaChunk({ tool_calls })
      yield deltaChunk(annotationFields(answer), finishReasonOf(answer))
      if (options.include_usage) yield chunk([], { usage: shownUsage(answer.usage, visible) })
      yield 'data: [DONE]\n\n'
    },
    failed(error) {
      const body = options.failed(error)
      return body && dataMessage(body)
    },
  }
}
