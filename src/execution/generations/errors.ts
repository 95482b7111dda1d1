import type { CodesOf, ErrorTable } from '#core/base/errors.ts'

export const generationErrors = {
  GENERATION_ALREADY_IN_PROGRESS: {
    status: 409,
    description: 'A generation is running for the session',
    message: 'Generation {generation_id} is in progress',
    hint: 'Wait until the generation in meta.generation_id ends or cancel it with POST /generations/{generation_id}/cancel, then retry.',
  },
  GENERATION_CONTENT_UNAVAILABLE: {
    status: 409,
    description: 'Content never stored (trace_content_mode none) or purged',
    message: 'The content of generation {generation_id} was not stored or has been erased',
    hint: 'The content cannot be restored. To store the content of later turns, set trace_content_mode of the project and the agent to full.',
  },
  GENERATION_FAILED: { status: 500, description: 'Unexpected failure during generation' },
  GENERATION_NOT_FOUND: {
    status: 404,
    description: 'Generation missing or not pending for tool output submission',
    message: 'Generation {id} not found or not awaiting tool outputs',
  },
  MODEL_NOT_PRICED: {
    status: 409,
    description: 'Generation on an unpriced model in a project that requires prices',
    message: 'The model has no price and the project requires one',
    hint: 'Add prices for the rows in meta.unpriced_rows, or turn off require_priced_model of the project.',
  },
  OUTPUT_SCHEMA_STREAMING_UNSUPPORTED: {
    status: 400,
    description: 'Streaming with output_schema',
    message: 'An agent with an output_schema cannot be streamed',
  },
  OUTPUT_SCHEMA_VALIDATION_FAILED: { status: 502, description: 'Model output violates output_schema or is not JSON' },
  SYSTEM_MESSAGE_NOT_ALLOWED: {
    status: 400,
    description: 'A role system entry in messages; use the instructions field',
    message: 'Messages with the role system are not accepted; use the instructions field',
  },
  TEXT_ENCODED_TOOL_CALL: { status: 502, description: 'Model wrote a tool call as plain text' },
  TOOL_CALL_FAILED: {
    status: 422,
    description: "Tool result of a transcript whose failure had no error code; contains the tool's message",
  },
} as const satisfies ErrorTable

declare module '#core/base/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof generationErrors> {}
}
