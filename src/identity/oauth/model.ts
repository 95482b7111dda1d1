import { z } from 'zod'
import { kind } from '#core/api/kind.ts'
import { record } from '#core/api/record.ts'
import { sealedColumn } from '#core/db/sealed.ts'
import { sql } from '#core/db/sql.ts'

const scopes = z.array(z.string())

export const Grant = record(
  'OauthGrant',
  {
    client_id: z
      .string()
      .describe('ID of the client: the name of a built-in client, an `oac_` ID or the URL of a metadata document'),
    client_name: z.string().nullable().describe('Name of the client at the time of consent'),
    user_id: z.string().describe('ID of the user who consented'),
    project_id: z
      .string()
      .nullable()
      .describe(
        'ID of the project to which the grant is bound. Null for a sign-in without access and for first-party clients that act as the user.',
      ),
    scopes: scopes.describe('Granted scopes'),
    last_used_at: z.string().nullable().describe('Time of the last request with a token of the grant, to the minute'),
    expires_at: z.string().describe('Expiry time, extended when a token is refreshed'),
  },
  { project: false, updated: false },
)

export const grantKind = kind({
  name: 'oauth_grant',
  prefix: 'ogr',
  table: 'oauth_grants',
  counted: false,
  record: Grant,
  hidden: { openid_scopes: scopes, ends_at: z.string(), revoked_at: z.string().nullable() },
  references: [
    { kind: 'user', column: 'user_id', on_delete: 'cascade' },
    { kind: 'project', column: 'project_id', on_delete: 'cascade' },
  ],
})

export type GrantRow = z.output<typeof grantKind.row>

export const CLIENT_KINDS = ['first_party', 'registered', 'metadata_document'] as const
export type ClientKind = (typeof CLIENT_KINDS)[number]

export const Client = record(
  'OauthClient',
  {
    kind: z
      .enum(['registered', 'metadata_document'])
      .describe('registered – registered dynamically; metadata_document – described by the document at its ID'),
    client_name: z.string().nullable().describe('Name from the client metadata'),
    redirect_uris: z.array(z.string()).describe('Allowed redirect URIs'),
    grants: z.int().describe('Number of live grants'),
    last_used_at: z.string().nullable().describe('Time of the last consent or refresh, to the day'),
  },
  { project: false, updated: false },
)

export const clientKind = kind({
  name: 'oauth_client',
  prefix: 'oac',
  table: 'oauth_clients',
  global: true,
  record: Client,
  hidden: { project_id: z.null() },
  computed: {
    project_id: sql.fragment`null::text`,
    redirect_uris: sql.fragment`coalesce(array(select jsonb_array_elements_text(t.metadata -> 'redirect_uris')), '{}')`,
    grants: sql.fragment`(select count(*)::int from oauth_grants g where g.client_id = t.id and g.revoked_at is null and g.expires_at > now())`,
  },
})

export const OBJECT_SEAL = 'oauth_object'
export const KEY_SEAL = 'oauth_key'

export const sealedOauthValues = [
  sealedColumn({
    table: 'oauth_objects',
    column: 'sealed',
    kind: OBJECT_SEAL,
    id: sql.fragment`(model || ':' || encode(id_hash, 'hex'))`,
    project: sql.fragment`null::text`,
  }),
  sealedColumn({
    table: 'oauth_keys',
    column: 'sealed',
    kind: KEY_SEAL,
    id: sql.fragment`kid`,
    project: sql.fragment`null::text`,
  }),
]
