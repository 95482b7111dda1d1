import { flag, list, setting, settings, type Values } from '#core/base/setting.ts'

export const openaiSettings = settings('openai', {
  OPENAI_MOUNT: setting(flag, 'true', 'Whether /openai/v1 is served; otherwise 404.'),
  OPENAI_ACTOR_HEADERS: setting(
    list,
    'X-OpenWebUI-User-Id,X-LibreChat-User-Id',
    "Comma-separated headers with a client's ID of its user, after HEADER_PREFIX + `Actor`.",
  ),
  OPENAI_SESSION_HEADERS: setting(
    list,
    'X-OpenWebUI-Chat-Id,X-Conversation-Id',
    "Comma-separated headers with a client's ID of its chat, after HEADER_PREFIX + `Session-Key`.",
  ),
})

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof openaiSettings> {}
}
