import MiniSearch, { type Options } from 'minisearch'
import { settingRows } from '../base/declared-settings.ts'
import { errorCodes, errorEntry } from '../base/errors.ts'
import { eventTypes } from '../writes/events.ts'
import type { Section } from './markdown.ts'
import type { Links, Page } from './page.ts'
import type { Reference } from './reference.ts'
import { SYNONYMS } from './synonyms.ts'

/** The index of the search, which the script of the pages loads. */

/**
 * An entry; `names` are names as one term each, without separators. `page` is the title of the page of a section, `weight`
 * the factor of its score; `isText` says that the entry is a section of a guide.
 */
type Entry = {
  id: number
  names: string
  title: string
  page: string
  text: string
  context: string
  weight: number
  isText: boolean
  target: string
}

/** Weights: a name before a title before text. */
const options: Options<Entry> = {
  fields: ['names', 'title', 'page', 'text'],
  storeFields: ['title', 'context', 'weight', 'isText'],
  searchOptions: { boost: { names: 4, title: 4, page: 2 }, prefix: true },
}

/** Entries that are no text of a guide are found by their name, and after the guides otherwise. */
const WEIGHT_OF_NAMES = 0.6
/** Pages for those who change Muster. */
const WEIGHT_OF_SOURCES = 0.5
const SOURCES = 'Development'

/** Characters of a section of such a page that the index has. */
const SOURCE_CHARS = 240

/** Returns a name as one term, in which each separator is a letter; the script of the pages does the same. */
const termOf = (name: string): string => name.replace(/[^a-z0-9]/gi, each => `z${SEPARATORS.indexOf(each)}z`)
const SEPARATORS = ' _.:-'

/** Returns the index as JSON: options, index, synonyms, and the addresses of the entries as seen from the start page. */
export function searchIndex(
  guides: readonly { page: Page; sections: readonly Section[] }[],
  pages: readonly Page[],
  reference: Reference,
  links: Links,
): string {
  const entries: Entry[] = []
  const add = (
    title: string,
    context: string,
    path: string,
    more: Partial<Pick<Entry, 'page' | 'text' | 'weight' | 'isText'>> & { names?: string[]; anchor?: string },
  ) => {
    const { names = [], text = '', page = '', weight = WEIGHT_OF_NAMES, isText = false, anchor = '' } = more
    const target = `${links(path, '')}${anchor && `#${anchor}`}`
    const terms = names.map(termOf).join(' ')
    entries.push({ id: entries.length, names: terms, title, page, text, context, weight, isText, target })
  }
  for (const { page, sections } of guides) {
    const isSource = page.group === SOURCES
    for (const { level, heading, anchor, text } of sections)
      add(heading, page.title, page.path, {
        anchor,
        isText: true,
        page: level === 1 ? '' : page.title,
        text: isSource ? text.trim().slice(0, SOURCE_CHARS) : text.trim(),
        weight: isSource ? WEIGHT_OF_SOURCES : 1,
      })
  }
  for (const page of pages.filter(each => each.section !== 'Guides')) add(page.title, page.section, page.path, {})
  for (const { id, command, summary, path } of reference.entries())
    add(id, summary, path, { names: command ? [id, command] : [id], anchor: id, text: summary })
  for (const code of errorCodes()) add(code, errorEntry(code).description, 'errors', { names: [code], anchor: code })
  for (const { name, meaning } of settingRows())
    add(name, meaning, 'settings', { names: [name], anchor: name, text: meaning })
  for (const { name } of eventTypes.all()) add(name, 'Event', 'events', { names: [name], anchor: name })
  const index = new MiniSearch(options)
  index.addAll(entries)
  return JSON.stringify({ options, index, synonyms: SYNONYMS, targets: entries.map(each => each.target) })
}
