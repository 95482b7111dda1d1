import type { Problem } from '#core/base/errors.ts'
import type { VendorNote } from '../model-messages.ts'
import type { OptionApi } from './provider-options.ts'
import type { VendorTool, VendorTools } from './vendor-tool-settings.ts'

type Setting = 'max_uses' | 'allowed_domains' | 'blocked_domains'

/** A tool of a package: its ID, its name in answers, and the arguments of settings. Other settings are left out. */
type PackageTool = {
  id: `${string}.${string}`
  name: string
  args?: Partial<Record<Setting, string>>
  /** Argument that contains the others. */
  within?: string
}

const DOMAINS = { allowed_domains: 'allowedDomains', blocked_domains: 'blockedDomains' }

const PACKAGE_TOOLS: Partial<Record<OptionApi, Partial<Record<VendorTool['type'], PackageTool>>>> = {
  anthropic: {
    web_search: { id: 'anthropic.web_search_20250305', name: 'web_search', args: { max_uses: 'maxUses', ...DOMAINS } },
    code_execution: { id: 'anthropic.code_execution_20250825', name: 'code_execution' },
  },
  'openai responses': {
    web_search: { id: 'openai.web_search', name: 'web_search', args: DOMAINS, within: 'filters' },
    code_execution: { id: 'openai.code_interpreter', name: 'code_interpreter' },
  },
  google: {
    web_search: { id: 'google.google_search', name: 'google_search' },
    code_execution: { id: 'google.code_execution', name: 'code_execution' },
  },
  xai: {
    web_search: {
      id: 'xai.web_search',
      name: 'web_search',
      args: { allowed_domains: 'allowedDomains', blocked_domains: 'excludedDomains' },
    },
    code_execution: { id: 'xai.code_execution', name: 'code_execution' },
  },
  groq: { web_search: { id: 'groq.browser_search', name: 'browser_search' } },
}

/** Whether a request has a tool that its vendor runs, and the vendor has it. */
export const hasVendorTool = (api: OptionApi, tools: VendorTools | null, type: VendorTool['type']): boolean =>
  PACKAGE_TOOLS[api]?.[type] !== undefined && tools?.some(tool => tool.type === type) === true

/** A vendor's tool as its package takes it. */
type SentVendorTool = {
  type: 'provider'
  id: `${string}.${string}`
  name: string
  args: Record<string, unknown>
}

/**
 * Returns the tools that the vendor of a request runs itself, and notes about those that it does not have. A tool of the
 * request with the same name takes precedence.
 */
export function sentVendorTools(
  api: OptionApi,
  tools: VendorTools | null | undefined,
  taken: ReadonlySet<string>,
): { tools: SentVendorTool[]; notes: VendorNote[] } {
  const sent: SentVendorTool[] = []
  const notes: VendorNote[] = []
  const leaveOut = (setting: string, message: string) => notes.push({ kind: 'setting_left_out', setting, message })
  for (const { type, ...settings } of tools ?? []) {
    const setting = `vendor_tools.${type}`
    const known = PACKAGE_TOOLS[api]?.[type]
    if (!known) leaveOut(setting, 'the vendor does not have it')
    else if (taken.has(known.name)) leaveOut(setting, `a tool of the request is named ${known.name}`)
    else {
      const args: Record<string, unknown> = {}
      for (const [name, value] of Object.entries(settings)) {
        const arg = known.args?.[name as Setting]
        if (arg === undefined) leaveOut(`${setting}.${name}`, 'the vendor does not have it')
        else args[arg] = value
      }
      const isNested = known.within !== undefined && Object.keys(args).length > 0
      sent.push({
        type: 'provider',
        id: known.id,
        name: known.name,
        args: isNested ? { [known.within as string]: args } : args,
      })
    }
  }
  return { tools: sent, notes }
}

/** Returns the problems of tools that an API does not have. */
export const vendorToolProblems = (api: OptionApi, providerType: string, tools: VendorTools): Problem[] =>
  tools.flatMap(({ type, ...settings }, index): Problem[] => {
    const known = PACKAGE_TOOLS[api]?.[type]
    const path = `vendor_tools[${index}]`
    const message = `is not available from ${providerType} providers${api === 'openai chat' ? ' with the chat API' : ''}`
    if (!known) return [{ code: 'INVALID_VALUE', path: `${path}.type`, message }]
    const unknown = Object.keys(settings).filter(name => !known.args?.[name as Setting])
    return unknown.map(name => ({ code: 'INVALID_VALUE', path: `${path}.${name}`, message }))
  })
