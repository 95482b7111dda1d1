import { z } from 'zod'

const domains = z.array(z.string().min(1).max(255)).min(1).max(100)

const VendorTool = z.discriminatedUnion('type', [
  z
    .strictObject({
      type: z.literal('web_search').describe('Search of the web, whose sources the answer cites'),
      max_uses: z.int().min(1).max(100).optional().describe('Maximum number of searches of an answer'),
      allowed_domains: domains.optional().describe('Domains whose pages may be found'),
      blocked_domains: domains.optional().describe('Domains whose pages are not found'),
    })
    .refine(({ allowed_domains, blocked_domains }) => !(allowed_domains && blocked_domains), {
      message: 'cannot be combined with allowed_domains',
      path: ['blocked_domains'],
    }),
  z.strictObject({ type: z.literal('code_execution').describe('Execution of code that the model writes') }),
])
export type VendorTool = z.output<typeof VendorTool>

export const VendorTools = z
  .array(VendorTool)
  .min(1)
  .max(2)
  .refine(tools => new Set(tools.map(({ type }) => type)).size === tools.length, 'must have each tool only once')
export type VendorTools = z.output<typeof VendorTools>
