/** Host names of the local machine as they appear in URLs. */
export const LOOPBACK = ['localhost', '127.0.0.1', '[::1]']

export const isLoopback = ({ hostname }: Pick<URL, 'hostname'>): boolean => LOOPBACK.includes(hostname)
