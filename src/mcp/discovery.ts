import { z } from 'zod'
import { parse } from '../core/api/validate.ts'
import { callMcpOperation } from './call.ts'
import { operationTool, permittedTools } from './registry.ts'
import { jsonResult } from './result.ts'
import { rankTools } from './search.ts'
import { invalidParams, type McpClientSession } from './session.ts'
import { type FixedTool, fixedTool, READING, toolArgumentsSchema } from './tools.ts'
import { isWithin, operationsIn } from './view.ts'

/** The tools by which others are found and called. */

const Search = z.strictObject({
  query: z.string().min(1).max(200).describe('What is to be done, in a few words'),
  module: z.string().max(100).optional().describe('Module to search in, such as `files`'),
  limit: z.int().min(1).max(50).default(10).describe('Tools to show; default 10, at most 50'),
})

const searchTools: FixedTool = {
  name: 'search-tools',
  title: 'Search tools',
  description:
    'Find tools for a task, best first: name, title, summary, module and whether each only reads. Tools that the credential can nowhere use are left out and counted as hidden.',
  inputSchema: toolArgumentsSchema(Search),
  annotations: { title: 'Search tools', ...READING },
  async run({ view, caller }, args) {
    const { query, module, limit } = parse(Search, args)
    const usable = new Set(permittedTools(caller))
    const found = rankTools(
      query,
      operationsIn({ ...view, permitted: false }, caller).filter(
        tool => module === undefined || tool.module === module,
      ),
    )
    const open = found.filter(tool => usable.has(tool))
    return jsonResult({
      tools: open.slice(0, limit).map(({ name, title, module, operation }) => ({
        name,
        title,
        summary: operation.summary,
        module,
        read_only: operation.method === 'get',
      })),
      hidden: found.length - open.length,
    })
  },
}

const Describe = z.strictObject({
  names: z.array(z.string().max(100)).min(1).max(10).describe('Names of tools, at most 10'),
})

const describeTools: FixedTool = {
  name: 'describe-tools',
  title: 'Describe tools',
  description: 'Show descriptions and argument schemas of tools by name.',
  inputSchema: toolArgumentsSchema(Describe),
  annotations: { title: 'Describe tools', ...READING },
  async run({ view }, args) {
    const names = [...new Set(parse(Describe, args).names)]
    const found = names.flatMap(name => {
      const tool = operationTool(name)
      return tool && isWithin(view, tool) ? [tool] : []
    })
    return jsonResult({
      tools: found.map(({ name, description, inputSchema, annotations, operation }) => ({
        name,
        description,
        input_schema: inputSchema,
        annotations,
        action: operation.action,
      })),
      unknown: names.filter(name => !found.some(tool => tool.name === name)),
    })
  },
}

const CallInput = z.strictObject({
  name: z.string().max(100).describe('Name of the tool'),
  arguments: z.record(z.string(), z.unknown()).optional().describe('Its arguments, as describe-tools shows them'),
})

const callToolByName: FixedTool = {
  name: 'call-tool',
  title: 'Call a tool',
  description: 'Call a tool by name with its arguments; the result is that of the tool.',
  inputSchema: toolArgumentsSchema(CallInput),
  annotations: {
    title: 'Call a tool',
    readOnlyHint: false,
    destructiveHint: true,
    idempotentHint: false,
    openWorldHint: true,
  },
  async run(session: McpClientSession, args, answering) {
    const { name, arguments: given = {} } = parse(CallInput, args)
    if (fixedTool(name)) return invalidParams(`${name} is called by its own name`)
    return callMcpOperation(session, answering, name, given)
  },
}

export const discoveryTools: readonly FixedTool[] = [searchTools, describeTools, callToolByName]
