import { alignTexts, spokenTexts } from '../../../src/protocols/openai/align.ts'
import { flat } from '../inputs.ts'
import { costCase } from '../measure.ts'

const BODY = { limit: 4 * 1024 * 1024, bound: 'bytes of a JSON body' }

/** 500 messages of the assistant with n bytes together. */
const replies = (part: string) => (n: number) => {
  const text = flat(part.repeat(Math.max(1, Math.floor(n / 500 / part.length))))
  return Array.from({ length: 500 }, () => ({ role: 'assistant' as const, content: text }))
}

export default [
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
