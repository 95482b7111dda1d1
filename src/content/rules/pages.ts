import { raise } from '../../core/api/errors.ts'
import { storableText } from '../../core/api/storable-text.ts'
import type { PageText } from '../chunks/model.ts'

/** The largest page number that a column holds. */
const MAX_PAGE = 2_147_483_647

const wrong = (path: string, message: string): never =>
  raise('CONVERTER_OUTPUT_INVALID', { message: `${path}: ${message}`, meta: { path } })

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value)

/**
 * What a converter answered, or posted later, as pages: a string is page 1, `{ pages: [{ text, page_number }] }` the
 * pages in their order. A page without a number has that of its place; blank pages are dropped, so there may be none.
 * Characters that no text can hold are dropped or replaced.
 * @param mostPages what no file has more of
 * @throws CONVERTER_OUTPUT_INVALID for anything else, with `meta.path`
 */
export function parsePages(value: unknown, mostPages: number): PageText[] {
  const pages = typeof value === 'string' ? [{ number: 1, text: value }] : pagesIn(value, mostPages)
  return pages
    .map(({ number, text }) => ({ number, text: storableText(text, '') }))
    .filter(({ text }) => /\S/.test(text))
}

function pagesIn(value: unknown, mostPages: number): { number: number; text: string }[] {
  if (!isObject(value) || !Array.isArray(value.pages))
    return wrong('output', 'must be a string or an object with pages')
  if (value.pages.length > mostPages) return wrong('pages', `may be ${mostPages} at most (INGESTION_MAX_PAGES)`)
  return value.pages.map(parsePage)
}

function parsePage(page: unknown, index: number): { number: number; text: string } {
  const path = `pages[${index}]`
  if (!isObject(page)) return wrong(path, 'must be an object')
  if (typeof page.text !== 'string') return wrong(`${path}.text`, 'must be a string')
  return { number: pageNumber(page.page_number, index, `${path}.page_number`), text: page.text }
}

function pageNumber(given: unknown, index: number, path: string): number {
  if (given === undefined || given === null) return index + 1
  const number = typeof given === 'string' && /^\d{1,15}$/.test(given.trim()) ? Number(given) : given
  return typeof number === 'number' && Number.isInteger(number) && number >= 1 && number <= MAX_PAGE
    ? number
    : wrong(path, 'must be an integer of at least 1')
}
