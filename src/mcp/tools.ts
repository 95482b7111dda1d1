import type { z } from 'zod'
import { inlineSchema } from '#core/api/flatten.ts'
import { extensionPoint } from '#core/base/declarations.ts'
import type { McpTool } from './registry.ts'
import type { ToolResult } from './result.ts'
import type { McpClientSession, PendingAnswer } from './session.ts'

/** Tool that is not an operation. */
export type FixedTool = McpTool & {
  /** Whether the tool reads the manual; such tools are in every list. */
  docs?: boolean
  run(
    session: McpClientSession,
    args: Record<string, unknown>,
    answering: PendingAnswer,
  ): Promise<ToolResult | Record<string, unknown>>
}

export const toolPoint = extensionPoint<readonly FixedTool[]>({
  name: 'tools of MCP',
  folder: 'mcp',
  description: 'Adds tools that are no operations',
})

/** Annotations of a fixed tool that only reads. */
export const READING = { readOnlyHint: true, destructiveHint: false, idempotentHint: true, openWorldHint: false }

/** Returns the JSON Schema of a fixed tool's arguments. */
export const toolArgumentsSchema = (schema: z.ZodType): Record<string, unknown> => inlineSchema(schema)

export const fixedTools = (): readonly FixedTool[] => toolPoint.all().flat()

export const docsTools = (): readonly FixedTool[] => fixedTools().filter(({ docs }) => docs)

export const fixedTool = (name: string): FixedTool | undefined => fixedTools().find(tool => tool.name === name)
