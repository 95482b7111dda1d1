import { existsSync, readdirSync, readFileSync } from 'node:fs'
import type { Page } from './page.ts'

/** The guides: the files of the folder docs. */

const FOLDER = new URL('../../../docs/', import.meta.url)

const textOf = (file: string): string => readFileSync(new URL(file, FOLDER), 'utf8')

const IMAGES = new URL('images/', FOLDER)

/** Returns the pictures of the guides: names and files. */
export const guideImages = (): { name: string; file: URL }[] =>
  existsSync(IMAGES)
    ? readdirSync(IMAGES)
        .filter(name => name.endsWith('.png'))
        .map(name => ({ name, file: new URL(name, IMAGES) }))
    : []

/** Returns the guides by title, and the start page, which is `index.md`. */
export function guides(): Page[] {
  const files = existsSync(FOLDER) ? readdirSync(FOLDER).filter(name => name.endsWith('.md')) : []
  return files
    .map((file): Page => {
      const text = textOf(file)
      const [, title = file] = /^# (.+)$/m.exec(text) ?? []
      const isStart = file === 'index.md'
      return {
        path: isStart ? '' : `guides/${file.slice(0, -'.md'.length)}`,
        title,
        section: isStart ? 'Start' : 'Guides',
        folder: 'guides/',
        markdown: () => text,
      }
    })
    .sort((a, b) => a.title.localeCompare(b.title, 'en'))
}
