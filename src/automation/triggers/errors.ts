import type { CodesOf, ErrorTable } from '#core/base/errors.ts'

export const triggerErrors = {
  HOOK_INVALID_JSON: {
    status: 400,
    description: 'Inbound hook body not JSON',
    message: 'The body is not valid JSON',
  },
  HOOK_PAYLOAD_TOO_LARGE: {
    status: 413,
    description: 'Inbound hook body over 1 MiB',
    message: 'The body is larger than {max_bytes} bytes',
  },
  INVALID_CRON_EXPRESSION: {
    status: 400,
    description: 'Cron expression is malformed or never occurs',
    hint: 'Use five fields (minute, hour, day of month, month, day of week) with numbers, month and day names, *, lists, ranges and steps.',
  },
  INVALID_EVENT_PATTERN: {
    status: 400,
    description:
      'Pattern must be *, prefix.*, or an exact name; platform-namespace patterns must match a registered event',
    hint: 'List the platform events with GET /events/registry and use one of their names.',
  },
  TRIGGER_ACTION_NOT_ALLOWED: {
    status: 400,
    description:
      'Field not allowed for the type or target of the trigger: action is for platform and mcp tools, cron for schedules, event_pattern for event triggers, secrets for webhook triggers',
  },
  TRIGGER_CAUSATION_LIMIT: {
    status: 409,
    description: 'Event trigger already in the causal chain, or chain too deep or too broad',
    hint: 'Narrow event_pattern or event_filter of the trigger so that its own effects do not fire it.',
  },
  TRIGGER_CREATOR_UNAVAILABLE: {
    status: 409,
    description: 'Trigger creator no longer exists',
    message: 'Trigger {trigger_id} cannot fire: the principal that it runs as was deleted or disabled',
    hint: 'Enable the principal, or recreate the trigger with POST /triggers as another principal.',
  },
  TRIGGER_FIRING_ABANDONED: { status: 500, description: 'The worker died on every delivery of a tool firing' },
  TRIGGER_INPUT_INVALID: { status: 400, description: 'Effective input invalid for target' },
  TRIGGER_NOT_ACTIVE: {
    status: 409,
    description: 'Trigger inactive',
    message: 'Trigger {trigger_id} is not active',
    hint: 'Set active to true with PATCH /triggers/{trigger_id}, then repeat.',
  },
  TRIGGER_RECURSION_FORBIDDEN: {
    status: 403,
    description: 'Trigger-scoped credential cannot fire a trigger',
    message: 'Work started by trigger {trigger_id} cannot fire triggers',
  },
  TRIGGER_TARGET_NOT_FOUND: {
    status: 400,
    description: 'Target missing or type mismatch',
    message: '{target_type} {target_id} not found in this project',
  },
  TRIGGER_TYPE_IMMUTABLE: {
    status: 400,
    description: 'Trigger type cannot change',
    message: 'type: cannot be changed from {type} to {requested}',
  },
} as const satisfies ErrorTable

declare module '#core/base/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof triggerErrors> {}
}
