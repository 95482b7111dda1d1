import { dataOf, textOf as textOfParts } from '#protocols/a2a/parts.ts'
import { contextBlock, parseRunInput, submittedOutputs, toolOutput, turnOfMessage } from '#protocols/ag-ui/input.ts'
import { alignTexts, spokenTexts } from '#protocols/openai/align.ts'
import { textOf, userContentOf } from '#protocols/openai/content-parts.ts'
import { parseItemId } from '#protocols/openai/responses-format.ts'
import { parseChatInput, runInputOf } from '#protocols/ui/input.ts'
import { flat, items, repeated, repetitions } from '../inputs.ts'
import { costCase } from '../measure.ts'

const BODY = { limit: 4 * 1024 * 1024, bound: 'bytes of a JSON body' }

/** 500 messages of the assistant with n bytes together. */
const replies = (part: string) => (n: number) => {
  const text = flat(part.repeat(Math.max(1, Math.floor(n / 500 / part.length))))
  return Array.from({ length: 500 }, () => ({ role: 'assistant' as const, content: text }))
}

const attempt = (run: () => unknown): void => {
  try {
    run()
  } catch {
    // Refused.
  }
}

/** Messages of an assistant and of tools in turn, each with the id of a call. */
const calls = (n: number) =>
  items(at =>
    at % 2 === 0
      ? {
          id: `msg_${at}`,
          role: 'assistant' as const,
          toolCalls: [{ id: `call_${at}`, type: 'function', function: { name: 'x', arguments: '{}' } }],
        }
      : { id: `out_${at}`, role: 'tool' as const, content: 'x', toolCallId: `call_${at - 1}` },
  )(n)

export default [
  costCase({
    name: 'protocols/a2a/parts.ts textOf and dataOf',
    limit: 16,
    bound: 'parts of a message',
    inputs: { texts: items(() => ({ text: 'x'.repeat(262_144) })), data: items(() => ({ data: {} })) },
    run: parts => {
      textOfParts({ parts } as never)
      attempt(() => dataOf({ parts } as never))
    },
  }),
  costCase<unknown[]>({
    name: 'protocols/ag-ui/input.ts parseRunInput',
    limit: 10_000,
    bound: 'messages of a run',
    inputs: {
      calls,
      texts: items(at => ({ id: `m${at}`, role: 'user', content: 'x'.repeat(300) })),
      parts: n =>
        items(at => ({ id: `m${at}`, role: 'user', content: items(() => ({ type: 'text', text: 'x' }))(30) }))(n / 10),
    },
    run: messages => attempt(() => parseRunInput({ threadId: 't', runId: 'r', messages, tools: [], context: [] })),
  }),
  costCase({
    name: 'protocols/ag-ui/input.ts submittedOutputs',
    limit: 10_000,
    bound: 'messages of a run',
    inputs: { calls, 'outputs only': n => calls(2 * n).filter(({ role }) => role === 'tool') },
    run: messages => submittedOutputs(messages as never),
  }),
  costCase({
    name: 'protocols/ag-ui/input.ts turnOfMessage',
    limit: 1024 * 1024,
    bound: 'characters of the ID of a message',
    inputs: repetitions(['gen_', '_', 'a', '1', ':']),
    run: turnOfMessage,
  }),
  costCase({
    name: 'protocols/ag-ui/input.ts toolOutput',
    ...BODY,
    inputs: {
      blanks: repeated(' '),
      array: repeated('[]', { before: '[' }),
      numbers: repeated('1,', { before: '[', after: '1]' }),
    },
    run: content => toolOutput({ content } as never),
  }),
  costCase({
    name: 'protocols/ui/input.ts runInputOf',
    limit: 10_000,
    bound: 'messages of a chat, or bytes of a URL',
    inputs: {
      texts: items((at): object => ({ id: `m${at}`, role: 'user', parts: [{ type: 'text', text: 'x'.repeat(300) }] })),
      outputs: items((at): object => ({
        id: `m${at}`,
        role: 'assistant',
        parts: [{ type: 'step-start' }, { type: 'tool-x', toolCallId: 'c', state: 'output-available', output: at }],
      })),
      urls: (n): object[] =>
        ['%41', ',', ';base64', 'data:'].map((text, at) => ({
          id: `m${at}`,
          role: 'user',
          parts: [{ type: 'file', mediaType: 'image/png', url: `data:,${text.repeat(n)}` }],
        })),
    },
    run: messages => attempt(() => runInputOf(parseChatInput({ id: 'c', messages }))),
  }),
  costCase({
    name: 'protocols/ag-ui/input.ts contextBlock',
    limit: 16 * 1024,
    bound: 'bytes of the context',
    inputs: repetitions(['</', ' ', 'client_context', '>']),
    run: value => contextBlock({ context: [{ description: value, value }] }),
  }),
  costCase({
    name: 'protocols/openai/content-parts.ts userContentOf',
    ...BODY,
    inputs: Object.fromEntries(
      Object.entries(repetitions([';a', 'A', ';base64,'])).map(([name, text]) => [
        name,
        (n: number) => text(n).replace(/^/, 'data:image/png'),
      ]),
    ),
    run: url => attempt(() => userContentOf([{ type: 'image_url', image_url: { url } }] as never, 'x')),
  }),
  costCase({
    name: 'protocols/openai/content-parts.ts textOf',
    limit: 64,
    bound: 'parts of a message',
    inputs: { texts: items(() => ({ type: 'text' as const, text: 'x'.repeat(65_536) })) },
    run: textOf,
  }),
  costCase({
    name: 'protocols/openai/responses-format.ts parseItemId',
    limit: 64 * 1024,
    bound: 'characters of an ID of an item',
    inputs: repetitions(['_', 'msg_', 'a', '1']),
    run: parseItemId,
  }),
  costCase({
    name: 'protocols/openai/align.ts spokenTexts',
    ...BODY,
    inputs: { text: replies('a'), blocks: replies('<details '), spaces: replies(' ') },
    run: messages => spokenTexts(messages as never),
  }),
  costCase({
    name: 'protocols/openai/align.ts alignTexts',
    ...BODY,
    inputs: {
      blocks: n => {
        const texts = replies('<details ')(n).map(({ content: text }) => ({ role: 'assistant' as const, text }))
        const stored = texts.map(({ role, text: content }, position) => ({
          role,
          content,
          position,
          origin: 'agent',
          hash: null,
        }))
        return { texts, stored }
      },
    },
    run: ({ texts, stored }) => alignTexts(texts, stored),
  }),
]
