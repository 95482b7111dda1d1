import MiniSearch, { type Options } from 'minisearch'
import { settingRows } from '../base/declared-settings.ts'
import { errorCodes, errorEntry } from '../base/errors.ts'
import { eventTypes } from '../writes/events.ts'
import type { Section } from './markdown.ts'
import type { Links, Page } from './page.ts'
import type { Reference } from './reference.ts'

/** The index of the search, which the script of the pages loads. */

/** `names` are names as one term each, without separators. */
type Entry = { id: number; names: string; title: string; text: string; context: string; target: string }

/** Weights: a name before a title before text. */
const options: Options<Entry> = {
  fields: ['names', 'title', 'text'],
  storeFields: ['title', 'context'],
  searchOptions: { boost: { names: 20, title: 4 }, prefix: true },
}

/** Characters of a section that the index has. */
const TEXT_CHARS = 240

/** Returns a name as one term, in which each separator is a letter; the script of the pages does the same. */
const termOf = (name: string): string => name.replace(/[^a-z0-9]/gi, each => `z${SEPARATORS.indexOf(each)}z`)
const SEPARATORS = ' _.:-'

/** Returns the index as JSON: options, index, and the addresses of the entries as seen from the start page. */
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
    more: { names?: string[]; text?: string; anchor?: string },
  ) => {
    const { names = [], text = '', anchor = '' } = more
    const target = `${links(path, '')}${anchor && `#${anchor}`}`
    entries.push({ id: entries.length, names: names.map(termOf).join(' '), title, text, context, target })
  }
  for (const { page, sections } of guides)
    for (const { heading, anchor, text } of sections)
      add(heading, page.title, page.path, { anchor, text: text.trim().slice(0, TEXT_CHARS) })
  for (const page of pages.filter(each => each.section !== 'Guides')) add(page.title, page.section, page.path, {})
  for (const { id, command, summary, path } of reference.entries())
    add(id, summary, path, { names: command ? [id, command] : [id], anchor: id, text: summary })
  for (const code of errorCodes()) add(code, errorEntry(code).description, 'errors', { names: [code], anchor: code })
  for (const { name, meaning } of settingRows()) add(name, meaning, 'settings', { names: [name], anchor: name })
  for (const { name } of eventTypes.all()) add(name, 'Event', 'events', { names: [name], anchor: name })
  const index = new MiniSearch(options)
  index.addAll(entries)
  return JSON.stringify({ options, index, targets: entries.map(each => each.target) })
}
