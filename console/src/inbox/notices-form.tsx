import { Alert, Button, Group, Stack, Switch, Text } from '@mantine/core'
import { getApproval, getException, getSession, streamActivity } from '@muster/client/operations'
import { useState } from 'react'
import { FormButton } from '#components/actions.tsx'
import { type Operation, useMe, usePermissions } from '#projects.ts'
import * as strings from '#strings.ts'
import {
  NOTICES,
  type Notice,
  type NoticeChoice,
  noticePermission,
  useNoticeChoice,
  writeNoticeChoice,
} from './notices.ts'

const texts = strings.notices

/** Operations that read an item. */
const READS: Record<Notice, Operation> = { approvals: getApproval, attention: getSession, exceptions: getException }

/** A button for the choice of notifications, for users who may follow the activity of a project. */
export function NoticesButton({ projectId }: { projectId: string }) {
  const { data: me } = useMe()
  const isAllowed = usePermissions(projectId)
  const kinds = NOTICES.filter(kind => isAllowed(READS[kind]))
  if (!me || !isAllowed(streamActivity) || kinds.length === 0) return null
  return (
    <FormButton
      label={texts.button}
      size="xs"
      variant="default"
      modalSize="md"
      form={close => <NoticesForm {...{ projectId, kinds, close }} userId={me.id} />}
    />
  )
}

function NoticesForm({
  userId,
  projectId,
  kinds,
  close,
}: {
  userId: string
  projectId: string
  kinds: Notice[]
  close: () => void
}) {
  const choice = useNoticeChoice(userId, projectId)
  const [permission, setPermission] = useState(noticePermission)
  const change = async (name: keyof NoticeChoice, isOn: boolean) => {
    // Only a click requests the permission of the browser.
    const answer = isOn && permission === 'default' ? await Notification.requestPermission() : permission
    setPermission(answer)
    if (!isOn || answer === 'granted') writeNoticeChoice(userId, projectId, { ...choice, [name]: isOn })
  }
  const isBlocked = permission === 'denied' || permission === null
  return (
    <Stack gap="md">
      <Text size="sm" c="dimmed">
        {texts.intro}
      </Text>
      {isBlocked && <Alert color="yellow">{permission === null ? texts.none : texts.denied}</Alert>}
      {kinds.map((kind, index) => (
        <Switch
          key={kind}
          label={texts.kinds[kind]}
          checked={choice[kind] === true && !isBlocked}
          disabled={isBlocked}
          onChange={event => void change(kind, event.currentTarget.checked)}
          {...(index === 0 ? { 'data-autofocus': true } : {})}
        />
      ))}
      <Switch
        label={texts.details}
        description={texts.detailsText}
        checked={choice.details === true && !isBlocked}
        disabled={isBlocked}
        onChange={event => void change('details', event.currentTarget.checked)}
      />
      <Group>
        <Button onClick={close}>{strings.close}</Button>
      </Group>
    </Stack>
  )
}
