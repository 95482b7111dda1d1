import type { PageText } from './model.ts'
import { CharacterMeasure } from './text-measure.ts'

/** Number and first code point of each page of a joined text, in order. */
export type PageStarts = [number: number | null, start: number][]

/** Returns the starts of pages in the joined text; null if the pages have no numbers. */
export function pageStarts(pages: PageText[]): PageStarts | null {
  if (pages.every(page => page.number === null)) return null
  let start = 0
  return pages.map(({ number, text }) => {
    const pageStart = start
    start += new CharacterMeasure(text).index(text.length) + 1
    return [number, pageStart]
  })
}

/** Splits a joined text into its pages; a text without numbered pages is one page. */
export function splitIntoPages(text: string, starts: PageStarts | null): PageText[] {
  if (starts === null) return [{ number: null, text }]
  const measure = new CharacterMeasure(text)
  const offsets = starts.map(([, start]) => measure.offset(start))
  // The line break between two pages belongs to neither.
  return starts.map(([number], page) => ({
    number,
    text: text.slice(offsets[page], page + 1 < starts.length ? offsets[page + 1] - 1 : text.length),
  }))
}
