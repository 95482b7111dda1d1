import { z } from 'zod'
import { parse } from '#core/api/validate.ts'
import { callMcpOperation } from './call.ts'
import { operationTool, permittedTools } from './registry.ts'
import { jsonResult } from './result.ts'
import { rankTools } from './search.ts'
import { invalidParams, type McpClientSession } from './session.ts'
import { type FixedTool, fixedTool, READING, toolArgumentsSchema } from './tools.ts'
import { isWithin, operationsIn } from './view.ts'

/** Tools to find and call other tools. */

const Search = z.strictObject({
  query: z.string().min(1).max(200).describe('Task to perform, in a few words'),
  module: z.string().max(100).optional().describe('Module to search, for example `files`'),
  limit: z.int().min(1).max(50).default(10).describe('Maximum number of tools. Default 10, at most 50.'),
})

const searchTools: FixedTool = {
  name: 'search-tools',
  title: 'Search tools',
  description:
    'Find tools for a task, best match first. Returns the name, title, summary, module and read-only flag of each. Tools that the credential may not use anywhere are omitted and counted as hidden.',
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
    const usableTools = found.filter(tool => usable.has(tool))
    return jsonResult({
      tools: usableTools.slice(0, limit).map(({ name, title, module, operation }) => ({
        name,
        title,
        summary: operation.summary,
        module,
        read_only: operation.method === 'get',
      })),
      hidden: found.length - usableTools.length,
    })
  },
}

const Describe = z.strictObject({
  names: z.array(z.string().max(100)).min(1).max(10).describe('Names of tools, at most 10'),
})

const describeTools: FixedTool = {
  name: 'describe-tools',
  title: 'Describe tools',
  description: 'Get descriptions and argument schemas of tools by name.',
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
  arguments: z
    .record(z.string(), z.unknown())
    .optional()
    .describe('Arguments of the tool, as returned by describe-tools'),
})

const callToolByName: FixedTool = {
  name: 'call-tool',
  title: 'Call a tool',
  description: 'Call a tool by name with its arguments and return its result.',
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
    if (fixedTool(name)) return invalidParams(`Tool ${name} must be called directly`)
    return callMcpOperation(session, answering, name, given)
  },
}

export const discoveryTools: readonly FixedTool[] = [searchTools, describeTools, callToolByName]
