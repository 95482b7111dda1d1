import { Alert, Button, Card, Group, Stack, Text, Textarea } from '@mantine/core'
import type { Session } from '@muster/client'
import { sendOperatorMessage, sendSessionMessage } from '@muster/client/operations'
import { IconSend } from '@tabler/icons-react'
import { useMutation } from '@tanstack/react-query'
import { type ReactNode, useState } from 'react'
import { api } from '#api.ts'
import { useDraft } from '#components/draft.tsx'
import { sendOnEnter } from '#components/send-key.ts'
import { FailureAlert } from '#components/states.tsx'
import * as strings from '#strings.ts'
import { ReplyField } from './reply-field.tsx'

const texts = strings.sessions

/** A message that is typed; a failed one stays. */
function useMessage(name: string, run: (message: string) => PromiseLike<unknown>) {
  const { value: text, setValue: setText } = useDraft(name, '')
  const send = useMutation({ mutationFn: async (message: string) => run(message), onSuccess: () => setText('') })
  return { text, setText, send, submit: () => void (text.trim() && !send.isPending && send.mutate(text.trim())) }
}

function ComposerCard({ error, children }: { error: unknown; children: ReactNode }) {
  return (
    <Card
      withBorder
      padding="md"
      radius="lg"
      style={{ position: 'sticky', bottom: 12, overflow: 'visible' }}
      shadow="sm"
    >
      <Stack gap="sm">
        {error != null && <FailureAlert error={error} />}
        {children}
      </Stack>
    </Card>
  )
}

/**
 * The composer of a person who took the session over. A reply that was not sent when another person or the agent took over stays,
 * with the reason why it cannot be sent.
 */
export function OperatorComposer({
  session: { id, project_id },
  customerName,
  refusal,
}: {
  session: Session
  customerName?: string
  /** Why the reader cannot send; null for who is in charge. */
  refusal: string | null
}) {
  const { text, setText, send, submit } = useMessage('reply', message =>
    sendOperatorMessage(api, { session_id: id, message }),
  )
  if (refusal !== null && !text.trim()) return null
  return (
    <ComposerCard error={send.error}>
      {refusal !== null && (
        <Alert color="orange" role="status">
          {refusal}
        </Alert>
      )}
      <ReplyField
        projectId={project_id}
        customerName={customerName}
        label={texts.asOperator}
        value={text}
        onChange={setText}
        onEnter={() => refusal === null && submit()}
        actions={
          <Button
            leftSection={<IconSend size={16} />}
            loading={send.isPending}
            disabled={refusal !== null || !text.trim()}
            onClick={submit}
          >
            {texts.send}
          </Button>
        }
      />
    </ComposerCard>
  )
}

/** The composer of messages as the user; in a session of an end user only on request, because these are not the end user's. */
export function UserComposer({ session: { id, actor_id } }: { session: Session }) {
  const [isOpen, setOpen] = useState(actor_id === null)
  const { text, setText, send, submit } = useMessage('message', message =>
    sendSessionMessage(api, { session_id: id, message }),
  )
  if (!isOpen)
    return (
      <Group gap="sm" justify="space-between">
        <Text size="sm" c="dimmed">
          {texts.ofEndUser}
        </Text>
        <Button variant="subtle" size="xs" onClick={() => setOpen(true)}>
          {texts.writeAsUser}
        </Button>
      </Group>
    )
  return (
    <ComposerCard error={send.error}>
      <Textarea
        label={texts.asUser}
        autosize
        minRows={2}
        maxRows={8}
        value={text}
        onChange={event => setText(event.currentTarget.value)}
        onKeyDown={sendOnEnter(submit)}
      />
      <Group justify="flex-end">
        <Button leftSection={<IconSend size={16} />} loading={send.isPending} disabled={!text.trim()} onClick={submit}>
          {texts.send}
        </Button>
      </Group>
    </ComposerCard>
  )
}
