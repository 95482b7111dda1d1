import { deflateRawSync, inflateRawSync } from 'node:zlib'
import { z } from 'zod'
import { type Fragment, sql } from '../db/sql.ts'

/**
 * Compression of event envelopes without subscribers: most of the stored bytes of a turn are the field names in its
 * three events, and PostgreSQL compresses no value below 2 KB. 1.3 KB become 115 bytes in 20 us.
 */

/** Sizes that are compressed, in characters: below, little is saved; above, the event loop would be blocked. */
const COMPRESSED_SIZES = { from: 256, to: 64 * 1024 }

/**
 * Settings of zlib for texts that fit into a window with the dictionary. Its defaults allocate 260 KiB instead of
 * 48 KiB for each, which takes a third longer, for the same bytes.
 */
const COMPRESSION = { chunkSize: 1024, windowBits: 13, memLevel: 5 }
/** Longer texts, in characters, whose repetitions may be farther away. */
const LONG = { from: 4096, compression: { chunkSize: 1024 } }

/** Version of the dictionary, the first byte of a compressed envelope. */
const VERSION = 2

/**
 * Common texts of envelopes, the most frequent last. Decompression needs the dictionary of the compression, so a changed
 * one gets a new version and the previous one remains for reading. A field missing from the dictionary costs a turn some
 * 25 bytes.
 */
const DICTIONARY = Buffer.from(
  [
    'updated","deleted","actors.created","resource_type":"actor","resource_id":"actor_","name":"","external_id":null,"instructions":null,"agent_id":null,"chat_id":null,"metadata":null,"tags":{},',
    'files.created","resource_type":"file","resource_id":"file_","path":"/","filename":"","content_type":"text/plain","size":',
    '"checksum_sha256":"","document_id":null,"has_content":true,',
    'documents.created","resource_type":"document","title":"","status":"ready","content":"","version":1,',
    '","event":"conversations.created","resource_type":"conversation","resource_id":"conv_","session_id":"sess_","message_count":0,',
    '","event":"conversation_messages.created","event":"conversation_messages.generated","project_id":"proj_',
    '","resource_type":"conversation_message","resource_id":"doc_","data":{"document_id":"doc_","conversation_id":"conv_',
    '","role":"user","actor_id":"actor_","agent_id":null,"generation_id":null,"position":',
    '"role":"assistant","actor_id":null,"agent_id":"agent_","generation_id":"gen_","content":"","metadata":null,"created_at":"","trace_id":"trace_',
    '{"id":"evt_","event":"audit_entries.created","project_id":"proj_","resource_type":"audit_entry","resource_id":"audit_',
    '","data":{"id":"audit_","project_id":"proj_","principal_type":"user","principal_type":"api_key","principal_id":"key_',
    '","action":"actors:CreateActor","action":"sessions:SendSessionMessage","action":"agents:CreateAgentGeneration","resource_srn":"srn:proj_:session:sess_:agent:agent_',
    '","resource_public_id":"agent_","status":201,"status":200,"request_id":"","ip":"127.0.0.1","user_agent":"node","detail":null,"created_at":"',
    '","event":"sessions.created","resource_type":"session","resource_id":"sess_","event":"sessions.generation_completed","project_id":"proj_","event":"sessions.generation_started","project_id":"proj_',
    '","resource_type":"session","resource_id":"sess_","data":{"id":"sess_","project_id":"proj_","agent_id":"agent_","conversation_id":"conv_","status":"open","actor_id":"actor_',
    '","name":null,"auto_generate":true,"message_delay_seconds":null,"inactivity_ttl_seconds":0,"tool_context":null,"last_activity_at":"',
    '","generating_at":"","generating_at":null,"queued_turns":0,"forked_from_session_id":null,"forked_from_position":null,"tags":{},"created_at":"","updated_at":"","generation_id":"gen_","trace_id":"trace_',
    '","conversation_id":"conv_","session_id":"sess_","actor_id":"actor_","started_by_principal_type":"user","started_by_principal_id":"user_',
    '","event":"generations.failed","stop_reason":"error","error":{"code":"GENERATION_FAILED","message":"',
    '{"id":"evt_","event":"generations.started","project_id":"proj_',
    '","status":"in_progress","stop_reason":null,"error":null,"usage":null,"routing":null,"tool_surface":null,"extraction":null,"step_count":0,',
    '"completed_at":null,"last_activity_at":"","created_at":"","updated_at":"","output":null,"required_action":null},"timestamp":"',
    '{"id":"evt_","event":"generations.completed","project_id":"proj_","resource_type":"generation","resource_id":"gen_',
    '","data":{"id":"gen_","project_id":"proj_","agent_id":"agent_","trace_id":"trace_","agent_version":1,"initiator_generation_id":null,',
    '"chain_id":null,"conversation_id":null,"session_id":null,"actor_id":null,"started_by_principal_type":"api_key",',
    '"started_by_principal_id":"key_","status":"completed","stop_reason":"stop","error":null,"usage":{"cost_usd":null,"input_tokens":',
    ',"uncached_input_tokens":,"output_tokens":,"cached_tokens":0,"cache_write_tokens":0,"reasoning_tokens":0},',
    '"routing":null,"tool_surface":null,"extraction":null,"step_count":1,"action_id":null,"trigger_id":null,"orchestration_run_id":null,"node_id":null,"node_attempt":null,',
    '"source":null,"publisher_project_id":null,"metadata":null,"content_redacted_at":null,"content_redacted_by_principal_type":null,',
    '"content_redacted_by_principal_id":null,"started_at":"","completed_at":"","last_activity_at":"","created_at":"","updated_at":"',
    '","output":{"model":"","content":"","finish_reason":"stop","object":null},"required_action":null},"timestamp":"',
  ].join(''),
)

/** Row fields that the envelope repeats. */
type EnvelopeFields = { id: string; project_id: string; resource_id: string; created_at: string }

const dictionaryFor = ({ id, project_id, resource_id, created_at }: EnvelopeFields): Buffer =>
  Buffer.concat([
    DICTIONARY,
    Buffer.from(
      `${new Date(created_at).toISOString()}","id":"${id}","project_id":"${project_id}","id":"${resource_id}`,
    ),
  ])

/** Returns the compressed envelope, null if its size is outside the compressed range. */
export function compressEnvelope(event: EnvelopeFields & { envelope: string }): Buffer | null {
  const { envelope } = event
  if (envelope.length < COMPRESSED_SIZES.from || envelope.length > COMPRESSED_SIZES.to) return null
  return Buffer.concat([
    Buffer.of(VERSION),
    deflateRawSync(envelope, {
      ...(envelope.length < LONG.from ? COMPRESSION : LONG.compression),
      dictionary: dictionaryFor(event),
    }),
  ])
}

/** Columns of an event from which its envelope is read: as text, or compressed in `packed`. */
export const StoredEnvelope = z.object({
  id: z.string(),
  project_id: z.string(),
  resource_id: z.string(),
  created_at: z.string(),
  envelope: z.string().nullable(),
  packed: z.instanceof(Buffer).nullable(),
})
export const storedEnvelope: Fragment = sql.fragment`id, project_id, resource_id, created_at, envelope, packed`

/** Returns the envelope of an event, decompressed if necessary. */
export function readEnvelope(row: z.output<typeof StoredEnvelope>): string {
  const { envelope, packed } = row
  if (packed === null) return envelope as string
  const [version] = packed
  if (version !== VERSION) throw new Error(`Event ${row.id} was compressed with dictionary ${version}`)
  return inflateRawSync(packed.subarray(1), { dictionary: dictionaryFor(row) }).toString('utf8')
}
