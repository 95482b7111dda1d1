import type { GenerationRow } from '../generations/model.ts'
import { messageText } from '../providers/model-messages.ts'

/** What of a long turn counts: its end. */
const MAX_CHARS = 32_000

/** What was said in a turn, line by line, without tools and without what was looked up for it; its end when it is long. */
export function transcriptOf({ input, output }: Pick<GenerationRow, 'input' | 'output'>): string {
  const lines = (input ?? []).flatMap(message => {
    const text = message.role === 'tool' ? '' : messageText(message).trim()
    return text === '' ? [] : `${message.role}: ${text}`
  })
  const said = [...lines, `assistant: ${output?.content ?? ''}`].join('\n')
  return said.length > MAX_CHARS ? said.slice(-MAX_CHARS).replace(/^[\udc00-\udfff]/, '') : said
}
