import { Badge, Box, Card, Group, Stack, Text, Textarea } from '@mantine/core'
import type { Session, SessionNote } from '@muster/client'
import { createSessionNote, deleteSessionNote, listSessionNotes, updateSessionNote } from '@muster/client/operations'
import { useQuery } from '@tanstack/react-query'
import { useState } from 'react'
import { api, every } from '#api.ts'
import { Question, useAction } from '#components/actions.tsx'
import { type DialogEntry, DialogMenu } from '#components/dialog-menu.tsx'
import { DraftScope, useDraft } from '#components/draft.tsx'
import { MessageHead } from '#components/message.tsx'
import { usePersonName } from '#components/person.ts'
import { SubmitRow } from '#components/schema-form.tsx'
import { TextButton, visible } from '#components/text.tsx'
import { useMe, usePermissions } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.notes

/** Notes that are shown. */
const LATEST = 100
const POLL_MS = 10_000

const notesKey = (sessionId: string) => ['session', sessionId, 'notes']

/** Reads the latest notes of a session, newest first; notes of colleagues appear without a reload. */
export const useNotes = ({ id, project_id }: Session) => {
  const mayList = usePermissions(project_id)(listSessionNotes) === true
  return useQuery<SessionNote[]>({
    queryKey: notesKey(id),
    queryFn: async ({ signal }) =>
      (await listSessionNotes(api, { session_id: id, limit: LATEST }, { signal }).page()).data,
    enabled: mayList,
    refetchInterval: every(POLL_MS),
  })
}

/** A note of a colleague, among the messages. */
export function NoteCard({ note }: { note: SessionNote }) {
  const { id, session_id, project_id, author, author_name, text, created_at } = note
  const isAllowed = usePermissions(project_id)
  const { data: me } = useMe()
  const personName = usePersonName(project_id)
  const entries: (DialogEntry | false | undefined)[] = [
    author.id === me?.id &&
      isAllowed(updateSessionNote) && {
        title: strings.edit,
        content: close => <EditForm note={note} onDone={close} />,
      },
    isAllowed(deleteSessionNote) && {
      title: strings.remove,
      content: close => (
        <Question
          text={texts.deleteText}
          label={strings.remove}
          run={async () => deleteSessionNote(api, { session_id, note_id: id })}
          stale={[notesKey(session_id)]}
          close={close}
        />
      ),
    },
  ]
  return (
    <Box maw="85%" miw="min(280px, 100%)" component="section" aria-label={texts.note} style={{ alignSelf: 'center' }}>
      <Card withBorder padding="md" radius="lg" style={{ borderStyle: 'dashed' }}>
        <MessageHead
          name={author.type === 'user' ? personName(author.id, author_name) : strings.feedback.authors.api_key}
          at={created_at}
          badge={<Badge variant="default">{texts.note}</Badge>}
          menu={
            <DraftScope value={id}>
              <DialogMenu label={texts.menu} entries={entries.filter(entry => !!entry)} />
            </DraftScope>
          }
        />
        <Text className="wrap">{visible(text)}</Text>
      </Card>
    </Box>
  )
}

function EditForm({ note: { id, session_id, text: stored }, onDone }: { note: SessionNote; onDone: () => void }) {
  const { value: text, setValue: setText, forget } = useDraft('edit', stored)
  const close = () => {
    forget()
    onDone()
  }
  const save = useAction({
    run: async () => updateSessionNote(api, { session_id, note_id: id, text: text.trim() }),
    stale: [notesKey(session_id)],
    onDone: close,
  })
  return <NoteForm text={text} setText={setText} save={save} onCancel={close} />
}

function NoteForm({
  text,
  setText,
  save,
  isNew = false,
  onCancel,
}: {
  text: string
  setText: (text: string) => void
  save: { mutate: () => void; isPending: boolean; error: unknown }
  /** Whether it was opened by the user, and not with the page. */
  isNew?: boolean
  onCancel: () => void
}) {
  return (
    <form
      onSubmit={event => {
        event.preventDefault()
        if (text.trim()) save.mutate()
      }}
    >
      <Stack gap="sm">
        <Textarea
          label={texts.note}
          description={texts.help}
          value={text}
          onChange={event => setText(event.currentTarget.value)}
          autosize
          minRows={2}
          maxRows={8}
          required
          data-autofocus
          autoFocus={isNew}
        />
        <SubmitRow label={texts.save} isPending={save.isPending} error={save.error} onCancel={onCancel} />
      </Stack>
    </form>
  )
}

/** Writes a note, in a session of any state. An unsent note is kept and shown. */
export function NoteComposer({ session: { id, project_id } }: { session: Session }) {
  const isAllowed = usePermissions(project_id)
  const { value: text, setValue: setText } = useDraft('note', '')
  const [isRestored] = useState(text !== '')
  const [isOpen, setOpen] = useState(isRestored)
  const close = () => {
    setText('')
    setOpen(false)
  }
  const save = useAction({
    run: async () => createSessionNote(api, { session_id: id, text: text.trim() }),
    stale: [notesKey(id)],
    onDone: close,
  })
  if (!isAllowed(createSessionNote)) return null
  if (!isOpen)
    return (
      <Group>
        <TextButton onClick={() => setOpen(true)}>{texts.add}</TextButton>
      </Group>
    )
  return (
    <Card withBorder padding="md" radius="lg" style={{ borderStyle: 'dashed' }}>
      <NoteForm text={text} setText={setText} save={save} isNew={!isRestored} onCancel={close} />
    </Card>
  )
}
