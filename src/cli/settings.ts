import fs from 'node:fs'
import { settingRows } from '../config.ts'
import { CommandError, print, printJson, table } from './output.ts'

const OPENING = '<!-- settings -->'
const CLOSING = '<!-- /settings -->'

const TITLES: Record<string, string> = {
  process: 'Process and HTTP',
  database: 'Database',
  identity: 'Identity and secrets',
  egress: 'Egress',
  workers: 'Workers and turns',
  control: 'Events, webhooks and audit',
  content: 'Files, documents and search',
}

/** The settings as Markdown tables, one a group. */
export function settingsMarkdown(): string {
  const rows = settingRows()
  const groups = [...new Set(rows.map(row => row.group))]
  return groups
    .map(group => {
      const lines = rows
        .filter(row => row.group === group)
        .map(row => {
          const marks = [row.required_in_production && 'required in production', row.secret && 'secret']
          const shown = row.default === '' ? 'unset' : `\`${row.default}\``
          const meaning = [row.meaning, ...marks.filter(Boolean).map(mark => `(${mark})`)].join(' ')
          return `| \`${row.name}\` | ${shown} | ${meaning.replaceAll('|', '\\|')} |`
        })
      return `### ${TITLES[group] ?? group}\n\n| Variable | Default | Meaning |\n|---|---|---|\n${lines.join('\n')}`
    })
    .join('\n\n')
}

/** A document with what stands between its markers replaced by the tables. Raises CommandError without markers. */
export function withSettings(document: string): string {
  const start = document.indexOf(OPENING)
  const end = document.indexOf(CLOSING)
  if (start < 0 || end < start) throw new CommandError(`the document has no ${OPENING} and ${CLOSING}`)
  return `${document.slice(0, start + OPENING.length)}\n\n${settingsMarkdown()}\n\n${document.slice(end)}`
}

/** `muster settings`. */
export function settingsCommand(options: { markdown?: boolean; write?: string; json?: boolean }): void {
  const { write, markdown, json } = options
  const rows = settingRows()
  if (write !== undefined) fs.writeFileSync(write, withSettings(fs.readFileSync(write, 'utf8')))
  else if (markdown) print(settingsMarkdown())
  else if (json) printJson(rows)
  else {
    const cells = rows.map(row => [row.name, row.default, row.meaning])
    print(table(['variable', 'default', 'meaning'], cells, ''))
  }
}
