import path from 'node:path'
import { pathToFileURL } from 'node:url'
import { ExactNumber, parseExactJson } from '@muster/client'
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
            const args = withPlainNumbers(typeof given === 'string' ? parseExactJson(given || '{}') : given)
            return { tool_call_id, output: (await functions[name](args)) ?? null }
          } catch (error) {
            return { tool_call_id, output: { error: (error as Error).message } }
          }
        }),
      ),
  }
}

/** Returns arguments for a function: instead of an integer that a double would change, the text of its digits. */
function withPlainNumbers(value: unknown): unknown {
  if (value instanceof ExactNumber) {
    const double = Number(value.digits)
    return !Number.isFinite(double) || (/^-?\d+$/.test(value.digits) && !Number.isSafeInteger(double))
      ? value.digits
      : double
  }
  if (Array.isArray(value)) return value.map(withPlainNumbers)
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, withPlainNumbers(each)]))
}
