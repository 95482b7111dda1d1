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

/** Guides by group, in the order of the navigation; each group begins with its concepts. */
const GROUPS: readonly (readonly [group: string, guides: string])[] = [
  ['Begin', 'choosing install features guide glossary'],
  [
    'Quick starts',
    `quick-start-agent quick-start-search quick-start-approvals quick-start-review quick-start-workflow quick-start-webhooks
    quick-start-slack quick-start-python quick-start-openai quick-start-mcp quick-start-cli quick-start-deployment`,
  ],
  ['Conversations', 'concepts-conversations conversations agents model-vendors chats end-users'],
  ['Knowledge', 'concepts-knowledge content search memory memory-in-turns'],
  ['Tools and control', 'concepts-control tools guardrails approvals deciders shares'],
  ['Automation', 'concepts-automation orchestrations triggers workflows cases playbooks evaluations formations'],
  ['Integration', 'concepts-deliveries api client cli openai ai-sdk ag-ui a2a mcp oauth'],
  ['Operation', 'operations scale telemetry drills console sign-in security quotas usage retention activity'],
  ['Development', 'architecture flows decisions database reviewing benchmarks'],
]

/** Names of the groups of the navigation. */
export const GUIDE_GROUPS: readonly string[] = GROUPS.map(([group]) => group)

/** A paragraph that is a link to a state diagram. */
const STATES_LINK = /^\[(States of [\w ]+)\]\(flows\.md#[\w-]+\)$/gm

/** Adds the diagram after each paragraph that is a link to it, so that each diagram is written once. */
const withDiagrams = (text: string): string =>
  text.replace(STATES_LINK, (link, heading: string) => {
    const [, section = ''] = textOf('flows.md').split(`\n### ${heading}\n`)
    const [diagram = ''] = /^```mermaid\n[^`]*```$/m.exec(section) ?? []
    return `${link}\n\n${diagram}`
  })

/** Returns the guides in the order of the navigation, and the start page, which is `index.md`. */
export function guides(): Page[] {
  const files = existsSync(FOLDER) ? readdirSync(FOLDER).filter(name => name.endsWith('.md')) : []
  const order = GROUPS.flatMap(([group, names]) => names.split(/\s+/).map(name => ({ group, file: `${name}.md` })))
  const place = (file: string) => order.findIndex(each => each.file === file)
  return files
    .sort((a, b) => place(a) - place(b))
    .map((file): Page => {
      const text = withDiagrams(textOf(file))
      const [, title = file] = /^# (.+)$/m.exec(text) ?? []
      const isStart = file === 'index.md'
      return {
        path: isStart ? '' : `guides/${file.slice(0, -'.md'.length)}`,
        title,
        section: isStart ? 'Start' : 'Guides',
        group: order[place(file)]?.group,
        folder: 'guides/',
        markdown: () => text,
      }
    })
}
