import type { z } from 'zod'
import { inlineSchema } from '../core/api/flatten.ts'
import { extensionPoint } from '../core/declarations.ts'
import type { McpTool } from './registry.ts'
import type { ToolResult } from './result.ts'
import type { McpClientSession, PendingAnswer } from './session.ts'

/** A tool that is no operation. */
export type FixedTool = McpTool & {
  /** One of those that read the manual, which every list has. */
  docs?: boolean
  run(
    session: McpClientSession,
    args: Record<string, unknown>,
    answering: PendingAnswer,
  ): Promise<ToolResult | Record<string, unknown>>
}

export const toolPoint = extensionPoint<readonly FixedTool[]>('tools of MCP')

/** What hosts are told of such a tool that only reads. */
export const READING = { readOnlyHint: true, destructiveHint: false, idempotentHint: true, openWorldHint: false }

/** The JSON Schema of the arguments of such a tool. */
export const toolArgumentsSchema = (schema: z.ZodType): Record<string, unknown> => inlineSchema(schema)

export const fixedTools = (): readonly FixedTool[] => toolPoint.all().flat()

export const docsTools = (): readonly FixedTool[] => fixedTools().filter(({ docs }) => docs)

export const fixedTool = (name: string): FixedTool | undefined => fixedTools().find(tool => tool.name === name)
