import { existsSync, readFileSync } from 'node:fs'
import { actionCatalogue } from '../api/catalogue.ts'
import type { Operation } from '../api/operation.ts'
import { listExtensionPoints } from '../base/declarations.ts'
import { errorCodes, errorEntry } from '../base/errors.ts'
import { eventTypes } from '../writes/events.ts'
import { type Description, routesOf } from './description.ts'
import { code, escapeMarkdown, type Page, slugOf, table } from './page.ts'
import { settingsMarkdown } from './setting-tables.ts'

/** Pages of everything with a name: error codes, permissions, events, settings, commands, methods, extension points, changes. */

const CHANGES = new URL('../../../CHANGELOG.md', import.meta.url)

const reference = (page: Omit<Page, 'section' | 'folder'>): Page => ({ ...page, section: 'Reference', folder: '' })

const errors = (): string => {
  const rows = errorCodes().map(each => {
    const { status, description, hint } = errorEntry(each)
    return [code(each), String(status), escapeMarkdown(description), escapeMarkdown(hint)]
  })
  return `# Error codes

Every error body is \`{"error":{"code","message","hint","docs_url","meta"}}\`. Codes are stable: neither name nor status changes.

${table(['Code', 'Status', 'Description', 'Hint'], rows)}`
}

const permissions = (operations: readonly Operation[]): string => {
  const sections = actionCatalogue(operations).map(({ module, actions }) => {
    const rows = actions.map(each => [
      code(each.action),
      escapeMarkdown(each.description),
      each.resource_type ? code(each.resource_type) : '',
      each.gate,
    ])
    return `## ${module}\n\n${table(['Action', 'Description', 'Resource type', 'Gate'], rows)}`
  })
  return `# Permissions

Actions that policies allow or deny, by module. The gate says who may call at all: \`policy\` by policies, \`owner\` and \`admin\`
by role, \`any\` with any credential.

${sections.join('\n\n')}`
}

const events = (): string => {
  const rows = eventTypes
    .all()
    .toSorted((a, b) => (a.name < b.name ? -1 : 1))
    .map(({ name, resource_type, aliases, notes }) => [
      code(name),
      code(resource_type),
      aliases.map(code).join(', '),
      notes ? escapeMarkdown(notes) : '',
    ])
  return `# Events

Events that webhooks and triggers subscribe to, by name, alias or a pattern such as \`agents.*\`.

${table(['Event', 'Resource type', 'Aliases', 'Notes'], rows)}`
}

const extensionPoints = (): string => {
  const rows = listExtensionPoints().map(({ name, folder, description, contributors }) => [
    escapeMarkdown(name),
    code(folder),
    escapeMarkdown(description),
    contributors.map(code).join(', '),
  ])
  return `# Extension points

Points at which a folder of the source reaches later ones, which it must not import. The folder declares the point, modules
contribute to it. [Architecture](guides/architecture.md#dependencies) describes the order of the folders.

${table(['Point', 'Declared in', 'What a contribution does', 'Contributors'], rows)}`
}

const settings = (): string => `# Settings

Environment variables of web and worker. They are read once, at the start; an invalid value stops it.

${settingsMarkdown().replace(/^###/gm, '##')}`

/** Returns a table of operations by tag: its rows have a name for the operation, and a link to its entry. */
function byTag(description: Description, head: string, nameOf: (words: readonly string[]) => string): string {
  const routes = routesOf(description).filter(({ operation }) => operation['x-command'])
  return description.tags
    .map(({ name: tag }) => {
      const rows = routes
        .filter(({ operation }) => operation.tags[0] === tag)
        .map(({ operation }) => [
          code(nameOf(operation['x-command'] as string[])),
          `[${operation.operationId}](reference/${slugOf(tag)}.md#${operation.operationId})`,
          escapeMarkdown(operation.summary),
        ])
      return `## ${tag}\n\n${table([head, 'Operation', 'Description'], rows)}`
    })
    .join('\n\n')
}

const commands = (description: Description): string => `# Commands

Each operation has a command. Parameters of the path are arguments, in the order of the path; other fields are flags:
\`--name value\` for \`name\`, \`--max-steps 3\` for \`max_steps\`, \`--no-active\` for \`false\`, JSON for objects, \`@file\` for the text of a
file. The entry of an operation has an example. [Operations](guides/operations.md) has the commands that run a deployment.

${byTag(description, 'Command', words => ['muster', ...words].join(' '))}`

const camel = (word: string): string => word.replace(/-(\w)/g, (_, letter: string) => letter.toUpperCase())

const methods = (description: Description): string => `# Methods of the TypeScript client

Each operation has a method, which takes the fields of path, query and body in one object. The
[guide of the client](guides/client.md) describes options, lists, streams, files and errors.

${byTag(description, 'Method', words => ['muster', ...words.map(camel)].join('.'))}`

const changes = (): string => readFileSync(CHANGES, 'utf8').replaceAll('](docs/', '](guides/')

/** Returns the pages that a deployment serves even without its documentation: errors and refusals refer to them. */
export const requiredPages = (operations: readonly Operation[]): Page[] => [
  reference({ path: 'errors', title: 'Error codes', anchorsRows: true, markdown: errors }),
  reference({ path: 'permissions', title: 'Permissions', anchorsRows: true, markdown: () => permissions(operations) }),
]

export const cataloguePages = (description: Description): Page[] => [
  reference({ path: 'events', title: 'Events', anchorsRows: true, markdown: events }),
  reference({ path: 'settings', title: 'Settings', anchorsRows: true, markdown: settings }),
  reference({ path: 'cli', title: 'Commands', anchorsRows: true, markdown: () => commands(description) }),
  reference({ path: 'client', title: 'Client methods', anchorsRows: true, markdown: () => methods(description) }),
  reference({ path: 'extension-points', title: 'Extension points', markdown: extensionPoints }),
  ...(existsSync(CHANGES) ? [reference({ path: 'changes', title: 'Changes', markdown: changes })] : []),
]
