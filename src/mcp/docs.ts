import { z } from 'zod'
import { operations } from '#core/api/operation.ts'
import { parse } from '#core/api/validate.ts'
import { raiseInvalid } from '#core/base/errors.ts'
import type { Site } from '#core/docs/site.ts'
import { deployedSite } from '#core/http/documents.ts'
import { jsonResult } from './result.ts'
import type { McpClientSession } from './session.ts'
import { type FixedTool, READING, toolArgumentsSchema } from './tools.ts'

/** Tools to read the documentation at /docs. */

const siteOf = ({ services }: McpClientSession): Promise<Site> => deployedSite(services.config, operations.all())

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
    async run(session, args) {
      parse(NoArguments, args)
      return jsonResult({ pages: (await siteOf(session)).pages() })
    },
  },
  {
    name: 'get-doc-page',
    title: 'Read the manual',
    description: 'Get a page of the manual as Markdown.',
    inputSchema: toolArgumentsSchema(PageInput),
    annotations: { title: 'Read the manual', ...READING },
    docs: true,
    async run(session, args) {
      const { path } = parse(PageInput, args)
      const text = (await siteOf(session)).markdownAt(path)
      if (text === null)
        return raiseInvalid({ code: 'INVALID_VALUE', path: 'path', message: 'is not a page of the manual' })
      return { content: [{ type: 'text', text }] }
    },
  },
]
