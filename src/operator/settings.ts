import fs from 'node:fs'
import { declareSettings, settingRows } from '#core/base/declared-settings.ts'
import { settingGroupTitle, settingsMarkdown } from '#core/docs/setting-tables.ts'
import { settingDeclarations } from '#settings.ts'
import { CommandError, print, printJson, table } from './output.ts'

declareSettings(settingDeclarations)

const OPENING = '<!-- settings -->'
const CLOSING = '<!-- /settings -->'

/**
 * Returns an environment file: settings required in production first, then all others commented out at their defaults.
 */
export function settingsEnvironment(): string {
  const rows = settingRows()
  const line = ({ name, default: value }: (typeof rows)[number]) =>
    `${name}=${/[\s#'"]/.test(value) ? `'${value}'` : value}`
  const required = rows.filter(row => row.required_in_production)
  const groups = Map.groupBy(
    rows.filter(row => !row.required_in_production),
    row => row.group,
  )
  const parts = [
    '# Settings of web and worker. Node reads the file with --env-file; docker and systemd read it too.',
    ['# Required in production', ...required.flatMap(row => [`# ${row.meaning}`, line(row)])].join('\n'),
    ...[...groups].map(([group, members]) =>
      [`# ${settingGroupTitle(group)}`, ...members.flatMap(row => [`# ${row.meaning}`, `#${line(row)}`])].join('\n'),
    ),
  ]
  return `${parts.join('\n\n')}\n`
}

/**
 * Replaces the text between the markers of a document by the tables.
 * @throws CommandError without markers
 */
export function withSettings(document: string): string {
  const start = document.indexOf(OPENING)
  const end = document.indexOf(CLOSING)
  if (start < 0 || end < start) throw new CommandError(`document has no ${OPENING} and ${CLOSING}`)
  return `${document.slice(0, start + OPENING.length)}\n\n${settingsMarkdown()}\n\n${document.slice(end)}`
}

/** `muster settings`. */
export function settingsCommand(options: {
  markdown?: boolean
  write?: string
  env?: string | true
  json?: boolean
}): void {
  const { write, env, markdown, json } = options
  const rows = settingRows()
  if (write !== undefined) fs.writeFileSync(write, withSettings(fs.readFileSync(write, 'utf8')))
  if (typeof env === 'string') fs.writeFileSync(env, settingsEnvironment())
  else if (env) print(settingsEnvironment().trimEnd())
  if (write !== undefined || env !== undefined) return
  if (markdown) print(settingsMarkdown())
  else if (json) printJson(rows)
  else {
    const cells = rows.map(row => [row.name, row.default, row.meaning])
    print(table(['variable', 'default', 'meaning'], cells, ''))
  }
}
