/** Whether a browser opens on the screen of the user: not over SSH and not without a display. */
export const canOpenBrowser = (): boolean =>
  process.env.SSH_CONNECTION === undefined &&
  (['darwin', 'win32'].includes(process.platform) ||
    process.env.BROWSER !== undefined ||
    process.env.DISPLAY !== undefined ||
    process.env.WAYLAND_DISPLAY !== undefined)

/** Opens an address in the browser. The caller prints it, so a browser that does not start is no failure. */
export async function openBrowser(url: string): Promise<void> {
  const { spawn } = await import('node:child_process')
  const [command, ...args] = process.env.BROWSER
    ? [process.env.BROWSER]
    : process.platform === 'darwin'
      ? ['open']
      : process.platform === 'win32'
        ? ['rundll32', 'url.dll,FileProtocolHandler']
        : ['xdg-open']
  const child = spawn(command, [...args, url], { stdio: 'ignore', detached: true })
  child.on('error', () => {})
  child.unref()
}
