import { Server } from '@modelcontextprotocol/server'
import { release } from '../core/process/release.ts'
import type { Services } from '../core/process/services.ts'
import { MODERN, OLD, TASKS } from './versions.ts'

const INSTRUCTIONS = `Every operation of the platform is a tool. Few are listed; find the others:
1. search-tools with a few words about the task, such as "upload a file".
2. describe-tools with the names found, for their arguments.
3. call-tool with a name and its arguments. Any tool may also be called by its own name.
Lists are paged by limit and offset and may be narrowed by filters. Work that takes long is waited for; \`wait: false\` answers at once with its record. get-docs lists the pages of the manual.`

/** Nothing is asked of clients, so nothing that they answer is validated. */
const validator = {
  getValidator() {
    throw new Error('no schema of a client is validated')
  },
}

/** The server of the SDK for one request: how clients begin. */
export const serverOf = ({ config }: Services, modern: boolean): Server =>
  new Server(
    { name: config.MCP_SERVER_NAME, version: release },
    {
      capabilities: { tools: {}, resources: {}, ...(modern ? { extensions: { [TASKS]: {} } } : {}) },
      instructions: INSTRUCTIONS,
      supportedProtocolVersions: [MODERN, ...OLD],
      jsonSchemaValidator: validator,
      cacheHints: { 'server/discover': { ttlMs: 300_000, cacheScope: 'public' } },
    },
  )
