import { readdirSync, readFileSync } from 'node:fs'
import { z } from 'zod'
import { raiseInvalid } from '../core/api/errors.ts'
import { parse } from '../core/api/validate.ts'
import { jsonResult } from './result.ts'
import { type FixedTool, READING, toolArgumentsSchema } from './tools.ts'

/** Tools to read the manual. */

const FOLDER = new URL('../../docs/', import.meta.url)

type DocPage = { path: string; title: string }

let pages: readonly DocPage[] | undefined

/** Returns the pages of the manual, by name. */
function index(): readonly DocPage[] {
  pages ??= readdirSync(FOLDER)
    .filter(name => name.endsWith('.md'))
    .sort()
    .map(path => {
      const [, title = path] = /^# (.+)$/m.exec(textOf(path)) ?? []
      return { path, title }
    })
  return pages
}

const textOf = (path: string): string => readFileSync(new URL(path, FOLDER), 'utf8')

const NoArguments = z.strictObject({})

const PageInput = z.strictObject({ path: z.string().max(255).describe('Path of a page, as returned by get-docs') })

export const manualTools: readonly FixedTool[] = [
  {
    name: 'get-docs',
    title: 'List the manual',
    description: 'List the paths and titles of the manual pages.',
    inputSchema: toolArgumentsSchema(NoArguments),
    annotations: { title: 'List the manual', ...READING },
    docs: true,
    async run(_session, args) {
      parse(NoArguments, args)
      return jsonResult({ pages: index() })
    },
  },
  {
    name: 'get-doc-page',
    title: 'Read the manual',
    description: 'Get a page of the manual as Markdown.',
    inputSchema: toolArgumentsSchema(PageInput),
    annotations: { title: 'Read the manual', ...READING },
    docs: true,
    async run(_session, args) {
      const { path } = parse(PageInput, args)
      if (!index().some(page => page.path === path))
        return raiseInvalid({ code: 'INVALID_VALUE', path: 'path', message: 'is not a page of the manual' })
      return { content: [{ type: 'text', text: textOf(path) }] }
    },
  },
]
