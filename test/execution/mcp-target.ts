import { spawn } from 'node:child_process'
import { once } from 'node:events'
import path from 'node:path'

export type McpRequest = { method: string; url: string; headers: Record<string, string>; body?: any }

export type McpTarget = {
  url: string
  port: number
  /** The requests that came since the last read, and the sessions that are open. */
  seen(): Promise<{ requests: McpRequest[]; sessions: number }>
  close(): Promise<void>
}

/** A server of the official SDK in a separate process (test/support/mcp-server.ts). */
export async function startMcpServer(): Promise<McpTarget> {
  const script = path.resolve(import.meta.dirname, '../support/mcp-server.ts')
  const child = spawn(process.execPath, [script], { stdio: ['ignore', 'pipe', 'inherit'] })
  const end = () => child.kill('SIGKILL')
  process.once('exit', end)
  const [line] = await once(child.stdout, 'data')
  const port = Number(String(line).trim())
  const url = `http://127.0.0.1:${port}`
  return {
    url,
    port,
    seen: async () => (await (await fetch(`${url}/seen`)).json()) as { requests: McpRequest[]; sessions: number },
    async close() {
      process.off('exit', end)
      const exited = once(child, 'exit')
      child.kill('SIGKILL')
      await exited
    },
  }
}
