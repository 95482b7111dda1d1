import { MODERN } from '../mcp/support.ts'
import { startApp } from '../support/app.ts'
import { testEnvironment } from '../support/environment.ts'
import { rate, start } from './http.ts'
import { rounded } from './measure.ts'
import type { Row } from './rows.ts'

/**
 * Tool calls over MCP next to the same calls over REST, on one web process. Usage: node test/bench/run.ts mcp
 */
export async function run(seconds = 6): Promise<Row[]> {
  const app = await startApp()
  const { id, key } = await app.project()
  const { body: plain } = await app.admin.post('/project-keys', { project_id: id })
  const actor = (await key.post('/actors', { name: 'Ada' })).body.id
  const env = { ...testEnvironment(app.databaseUrl), LOG_LEVEL: 'info', DATABASE_POOL_MAX: '20' }
  const web = await start('src/web.ts', env)
  web.child.stdout?.resume()
  try {
    const headers = { authorization: `Bearer ${plain.secret}`, 'content-type': 'application/json' }
    const call = (revision: string | null) => {
      const modern = revision === MODERN
      const params = {
        name: 'get-actor',
        arguments: { actor_id: actor },
        ...(modern && {
          _meta: {
            'io.modelcontextprotocol/protocolVersion': MODERN,
            'io.modelcontextprotocol/clientCapabilities': {},
            'io.modelcontextprotocol/clientInfo': { name: 'bench', version: '1' },
          },
        }),
      }
      return {
        url: `${web.url}/mcp`,
        method: 'POST' as const,
        headers: {
          ...headers,
          accept: 'application/json, text/event-stream',
          ...(revision && { 'mcp-protocol-version': revision }),
          ...(modern && { 'mcp-method': 'tools/call', 'mcp-name': 'get-actor' }),
        },
        body: JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'tools/call', params }),
      }
    }
    const rest = await rate({ url: `${web.url}/api/v1/actors/${actor}`, headers }, seconds, 200)
    const rows: Row[] = []
    for (const revision of [MODERN, '2025-11-25']) {
      const called = await rate(call(revision), seconds, 200)
      rows.push({
        what: `tools/call of a GET, ${revision}, of the same call over REST`,
        value: rounded(called / rest, 2),
        unit: 'x',
        target: '>= 0.6',
        note: `${Math.round(called)} against ${Math.round(rest)} requests a second`,
      })
    }
    return rows
  } finally {
    web.child.kill()
    await app.close()
  }
}
