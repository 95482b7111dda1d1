import { settingRows } from '../base/declared-settings.ts'

/** The table of the settings. */

const TITLES: Record<string, string> = {
  process: 'Process and HTTP',
  database: 'Database',
  identity: 'Identity and secrets',
  egress: 'Egress',
  workers: 'Workers and turns',
  control: 'Events, webhooks and audit',
  content: 'Files, documents and search',
  openai: 'OpenAI mount',
  telemetry: 'Telemetry',
}

export const settingGroupTitle = (group: string): string => TITLES[group] ?? group

/** Returns the settings as Markdown tables, one per group. */
export function settingsMarkdown(): string {
  const rows = settingRows()
  const groups = [...new Set(rows.map(row => row.group))]
  return groups
    .map(group => {
      const lines = rows
        .filter(row => row.group === group)
        .map(row => {
          const marks = [row.required_in_production && 'required in production', row.secret && 'secret']
          const defaultCell = row.default === '' ? 'unset' : `\`${row.default}\``
          const meaning = [row.meaning, ...marks.filter(Boolean).map(mark => `(${mark})`)].join(' ')
          return `| \`${row.name}\` | ${defaultCell} | ${meaning.replaceAll('|', '\\|')} |`
        })
      return `### ${settingGroupTitle(group)}\n\n| Variable | Default | Meaning |\n|---|---|---|\n${lines.join('\n')}`
    })
    .join('\n\n')
}
