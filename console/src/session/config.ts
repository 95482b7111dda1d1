import { anonymous } from '#api.ts'

/** Settings of the deployment that the page needs before anybody signs in. */
export type ConsoleConfig = {
  version: string
  base_url: string
  docs_url: string
  header_prefix: string
  oidc: boolean
  bootstrap_open: boolean
  idle_minutes: number
}

/** Reads the settings of the console. */
export async function readConfig(): Promise<ConsoleConfig> {
  const { data } = await anonymous.request<ConsoleConfig>(
    { method: 'GET', path: '/app/config.json', accept: 'application/json' },
    response => response.json(),
  )
  return data
}
