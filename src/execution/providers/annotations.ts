import type { LanguageModelV4Citation, LanguageModelV4Content, LanguageModelV4Source } from '@ai-sdk/provider'
import { storableText, truncateChars } from '#core/base/storable-text.ts'
import type { Annotation } from './model-messages.ts'
import { MessageBounds } from './vendor-parts.ts'

/** Most annotations of an answer. */
export const MAX_ANNOTATIONS = 200
const MAX_URL = 2048
const MAX_TEXT = 500

/**
 * Returns the web pages that the text of an answer cites, in its order. Positions are those that the vendor states, else those
 * of the whole text block. Pages that a search found and no text cites are included only if the vendor does not distinguish
 * them.
 */
export function annotationsOf(content: readonly LanguageModelV4Content[]): Annotation[] {
  const isCited = content.some(part => part.type === 'text' && part.citations?.length)
  const found = new Map<string, Annotation>()
  const bounds = new MessageBounds()
  let text = ''
  let start = 0
  const add = (source: LanguageModelV4Source, position: Partial<LanguageModelV4Citation> = {}) => {
    const annotation = annotationOf(source, position, { start, end: text.length })
    if (annotation && found.size < MAX_ANNOTATIONS) found.set(JSON.stringify(annotation), annotation)
  }
  for (const part of content) {
    if (part.type === 'text') {
      bounds.begin(part)
      if (part.text !== '') text += bounds.separator(text !== '')
      start = text.length
      text += part.text
      for (const citation of part.citations ?? []) add(citation.source, citation)
    } else if (part.type === 'source' && !isCited && !part.providerMetadata?.anthropic) add(part)
  }
  return [...found.values()]
}

function annotationOf(
  source: LanguageModelV4Source,
  { startIndex, endIndex, citedText }: Partial<LanguageModelV4Citation>,
  block: { start: number; end: number },
): Annotation | null {
  if (source.sourceType !== 'url' || source.url.length > MAX_URL || !/^https?:/i.test(source.url)) return null
  const short = (value: string | undefined) => (value ? storableText(truncateChars(value, MAX_TEXT)) : null)
  const within = (index: number | undefined, otherwise: number): number =>
    Number.isFinite(index) ? Math.min(block.end, block.start + Math.max(0, Math.trunc(index as number))) : otherwise
  const start_index = within(startIndex, block.start)
  return {
    type: 'url_citation',
    url: storableText(source.url),
    // xAI has the number of the citation in place of the title.
    title: /^\d{1,3}$/.test(source.title ?? '') ? null : short(source.title),
    cited_text: short(citedText),
    start_index,
    end_index: Math.max(start_index, within(endIndex, block.end)),
  }
}
