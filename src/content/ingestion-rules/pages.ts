import { raise } from '#core/base/errors.ts'
import { isObject, withDoubles } from '#core/base/exact-json.ts'
import { storableText } from '#core/base/storable-text.ts'
import type { PageText } from '../index/chunks/model.ts'

/** Maximum of an integer column. */
const MAX_PAGE = 2_147_483_647

const raiseInvalidOutput = (path: string, message: string): never =>
  raise('CONVERTER_OUTPUT_INVALID', { message: `${path}: ${message}`, meta: { path } })

/**
 * Parses the output of a converter: a string is page 1, `{ pages: [{ text, page_number }] }` are pages in order. A page
 * without a number is numbered by its position. Drops blank pages, so there may be none, and drops or replaces
 * characters that cannot be stored.
 * @throws CONVERTER_OUTPUT_INVALID for any other output, with `meta.path`
 */
export function parsePages(value: unknown, maxPages: number): PageText[] {
  const pages = typeof value === 'string' ? [{ number: 1, text: value }] : parsePageList(value, maxPages)
  return pages
    .map(({ number, text }) => ({ number, text: storableText(text, '') }))
    .filter(({ text }) => /\S/.test(text))
}

function parsePageList(value: unknown, maxPages: number): { number: number; text: string }[] {
  if (!isObject(value) || !Array.isArray(value.pages))
    return raiseInvalidOutput('output', 'must be a string or an object with pages')
  if (value.pages.length > maxPages)
    return raiseInvalidOutput('pages', `must have at most ${maxPages} items (INGESTION_MAX_PAGES)`)
  return value.pages.map(parsePage)
}

function parsePage(page: unknown, index: number): { number: number; text: string } {
  const path = `pages[${index}]`
  if (!isObject(page)) return raiseInvalidOutput(path, 'must be an object')
  if (typeof page.text !== 'string') return raiseInvalidOutput(`${path}.text`, 'must be a string')
  return { number: pageNumber(page.page_number, index, `${path}.page_number`), text: page.text }
}

function pageNumber(value: unknown, index: number, path: string): number {
  if (value === undefined || value === null) return index + 1
  const number = typeof value === 'string' && /^\d{1,15}$/.test(value.trim()) ? Number(value) : withDoubles(value)
  return typeof number === 'number' && Number.isInteger(number) && number >= 1 && number <= MAX_PAGE
    ? number
    : raiseInvalidOutput(path, 'must be an integer of at least 1')
}
