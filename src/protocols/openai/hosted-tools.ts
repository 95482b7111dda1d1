import { z } from 'zod'
import type { VendorTool, VendorTools } from '#execution/providers/options/vendor-tool-settings.ts'

/** A tool of the request that the vendor runs itself, and the field that has it. */
export type HostedTool = { tool: VendorTool; field: 'tools' | 'web_search_options' }

/** Names of tools, with the date of a version or without. */
const SEARCH = /^web_search(?:_preview)?(?:_\d{4}_\d{2}_\d{2})?$/
const CODE = 'code_interpreter'

export const isHosted = (type: string): boolean => type === CODE || SEARCH.test(type)

const domains = z.array(z.string().min(1).max(255)).min(1).max(100)

/** A tool of the API that the vendor runs itself; its other settings are ignored. */
export const HostedToolField = z.looseObject({
  type: z.string().refine(isHosted),
  filters: z.looseObject({ allowed_domains: domains.nullish(), blocked_domains: domains.nullish() }).nullish(),
})
type HostedToolField = z.output<typeof HostedToolField>

/** Returns the tools of a request that the vendor runs itself, each once, and the names of settings that are ignored. */
export function hostedToolsOf(
  tools: readonly object[],
  searchOptions?: Record<string, unknown> | null,
): { hosted: HostedTool[]; ignored: string[] } {
  const hosted = new Map<string, HostedTool>()
  const ignored: string[] = []
  const ignore = (path: string, settings: object, taken: readonly string[] = []) =>
    ignored.push(
      ...Object.entries(settings).flatMap(([name, value]) =>
        value == null || taken.includes(name) ? [] : [`${path}.${name}`],
      ),
    )
  for (const given of tools) {
    if (!isHostedTool(given)) continue
    const { type, filters, container, ...others } = given
    const isSearch = type !== CODE
    ignore('tools', others)
    if (!isAutomatic(container)) ignore('tools', { container })
    if (isSearch)
      ignore('tools', filters ?? {}, ['allowed_domains', ...(filters?.allowed_domains ? [] : ['blocked_domains'])])
    const tool: VendorTool = isSearch ? { type: 'web_search', ...domainsOf(filters) } : { type: 'code_execution' }
    if (!hosted.has(tool.type)) hosted.set(tool.type, { tool, field: 'tools' })
  }
  if (searchOptions) {
    ignore('web_search_options', searchOptions)
    if (!hosted.has('web_search'))
      hosted.set('web_search', { tool: { type: 'web_search' }, field: 'web_search_options' })
  }
  return { hosted: [...hosted.values()], ignored }
}

const isHostedTool = (tool: object): tool is HostedToolField =>
  'type' in tool && typeof tool.type === 'string' && isHosted(tool.type)

/** Whether the vendor makes the container for the answer. */
const isAutomatic = (container: unknown): boolean =>
  typeof container === 'object' && Object.keys(container ?? {}).every(name => name === 'type')

/** Vendors take one of the lists. */
const domainsOf = (filters: HostedToolField['filters']): { allowed_domains?: string[]; blocked_domains?: string[] } => {
  const { allowed_domains, blocked_domains } = filters ?? {}
  if (allowed_domains) return { allowed_domains }
  return blocked_domains ? { blocked_domains } : {}
}

/** Returns the tools in the terms of the platform; null without any. */
export const vendorToolsOf = (hosted: readonly HostedTool[]): VendorTools | null =>
  hosted.length > 0 ? hosted.map(({ tool }) => tool) : null
