import { z } from 'zod'
import { operations } from '../../core/api/operation.ts'
import { actionCatalogue } from '../../core/iam/catalogue.ts'
import { processSingleton } from '../../core/process/process-singleton.ts'
import type { Services } from '../../core/process/services.ts'

/** Scopes of tokens: `mcp:access`, `muster:user`, and consented actions as `*`, `<module>:*` or `<module>:<Action>`. */

/** Comes with every consent to actions; required on /mcp. */
export const MCP_ACCESS = 'mcp:access'
/** Makes a token equal to a token of its user. For first-party clients only. */
export const ACT_AS_USER = 'muster:user'

/** Scopes about the identity of the user. */
export const OPENID_SCOPES = ['openid', 'profile', 'offline_access']

const READ = /:(List|Get|Search|Download)/

export const ConsentModule = z
  .object({
    module: z.string().describe('Name of the module'),
    actions: z
      .array(
        z.object({
          action: z.string().describe('Action, as policies and scopes name it'),
          description: z.string().describe('What the action guards'),
        }),
      )
      .describe('Actions of the module that can be consented to'),
  })
  .meta({ id: 'OauthConsentModule' })
type ConsentModule = z.output<typeof ConsentModule>

/** What a user consents to. */
export const ScopeSelection = z
  .discriminatedUnion('kind', [
    z.strictObject({ kind: z.literal('all').describe('Every action') }),
    z.strictObject({ kind: z.literal('read').describe('Every action that lists, reads, searches or downloads') }),
    z.strictObject({
      kind: z.literal('modules').describe('Every action of some modules'),
      modules: z.array(z.string().max(128)).max(200).describe('Names of the modules'),
    }),
    z.strictObject({
      kind: z.literal('actions').describe('Some actions'),
      actions: z.array(z.string().max(128)).max(2000).describe('Names of the actions'),
    }),
  ])
  .meta({ id: 'OauthSelection' })
export type ScopeSelection = z.output<typeof ScopeSelection>

/** `known` are the scopes that a token for the API may have, as the protocol lists them. */
type Catalogue = { modules: ConsentModule[]; actions: string[]; scopes: Set<string>; known: string }

/**
 * Modules and actions that can be consented to. Not those of the admin role, which no token has, nor those of OAuth itself,
 * by which a token could widen what it may do.
 */
export const consentCatalogue: (services: Pick<Services, 'state'>) => Catalogue = processSingleton(() => {
  const modules = actionCatalogue(operations.all())
    .map(({ module, actions }) => ({
      module,
      actions: actions
        .filter(({ gate }) => gate === 'policy' || gate === 'owner')
        .map(({ action, description }) => ({ action, description })),
    }))
    .filter(({ module, actions }) => module !== 'oauth' && actions.length > 0)
  const actions = modules.flatMap(each => each.actions.map(({ action }) => action))
  const scopes = new Set(['*', ...modules.map(({ module }) => `${module}:*`), ...actions])
  return { modules, actions, scopes, known: [MCP_ACCESS, ...scopes].join(' ') }
})

/** The action scopes of a selection, sorted, and what of it does not exist. */
export function scopesOf(
  services: Pick<Services, 'state'>,
  selection: ScopeSelection,
): { scopes: string[]; unknown: string[] } {
  const { actions, scopes } = consentCatalogue(services)
  if (selection.kind === 'all') return { scopes: ['*'], unknown: [] }
  if (selection.kind === 'read') return { scopes: actions.filter(action => READ.test(action)).sort(), unknown: [] }
  const named =
    selection.kind === 'modules'
      ? selection.modules.map(name => ({ name, scope: `${name}:*` }))
      : selection.actions.map(name => ({ name, scope: name }))
  return {
    scopes: [...new Set(named.map(({ scope }) => scope))].sort(),
    unknown: named.filter(({ name, scope }) => !scopes.has(scope) || name.endsWith('*')).map(({ name }) => name),
  }
}

/** The action scopes among others. */
export const actionScopes = (scopes: readonly string[]): string[] =>
  scopes.filter(scope => scope !== MCP_ACCESS && scope !== ACT_AS_USER && !OPENID_SCOPES.includes(scope))

/** Whether action scopes allow nothing that others do not allow. */
export const areWithin = (scopes: readonly string[], others: readonly string[]): boolean =>
  others.includes('*') ||
  scopes.every(scope => others.includes(scope) || others.includes(`${scope.slice(0, scope.indexOf(':'))}:*`))

/** The policy that a grant of action scopes amounts to. */
export const policyOf = (scopes: readonly string[], projectId: string) => ({
  statement: [{ effect: 'Allow' as const, action: actionScopes(scopes), resource: [`srn:${projectId}:*:*`] }],
})
