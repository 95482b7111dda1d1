import path from 'node:path'
import { pathToFileURL } from 'node:url'
import { UsageError } from './failure.ts'
import { note, visible } from './terminal.ts'

type Call = { id: string; name: string; arguments: unknown }

/** Functions of client tools by name. */
export type ToolModule = { run(calls: readonly Call[], isQuiet: boolean): Promise<object[]> }

/** Loads a module that exports a function for each client tool. */
export async function loadTools(file: string): Promise<ToolModule> {
  let exported: Record<string, unknown>
  try {
    exported = await import(pathToFileURL(path.resolve(file)).href)
  } catch (error) {
    throw new UsageError(`--tools ${file} cannot be loaded: ${(error as Error).message}`)
  }
  const functions = { ...(exported.default as object), ...exported } as Record<string, (args: unknown) => unknown>
  return {
    run: (calls, isQuiet) =>
      Promise.all(
        calls.map(async ({ id, name, arguments: given }) => {
          if (!isQuiet) note(`→ ${visible(name)} (here)`)
          const tool_call_id = id
          if (!Object.hasOwn(functions, name) || typeof functions[name] !== 'function')
            return { tool_call_id, output: { error: `no function ${name} is exported` } }
          try {
            const args = typeof given === 'string' ? JSON.parse(given || '{}') : given
            return { tool_call_id, output: (await functions[name](args)) ?? null }
          } catch (error) {
            return { tool_call_id, output: { error: (error as Error).message } }
          }
        }),
      ),
  }
}
